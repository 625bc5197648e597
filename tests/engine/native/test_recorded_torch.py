"""A record of all nodes, most of whose calls ran without Python: what Python hooks record, and torch's own tell."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adbg.engine.backends.torch.backend import TorchBackend  # noqa: E402
from adbg.engine.backends.torch.native.survey import Surveyor  # noqa: E402
from adbg.engine.native import load  # noqa: E402
from adbg.engine.protocol.messages import BreakpointRequest  # noqa: E402
from adbg.engine.record.observers import Recording  # noqa: E402
from adbg.engine.record.reader import RunReader  # noqa: E402
from adbg.engine.record.recorder import Recorder  # noqa: E402
from adbg.engine.session.collecting import Collector  # noqa: E402
from adbg.engine.session.session import Session  # noqa: E402
from adbg.engine.session.told_later import Gatherer  # noqa: E402

FIRST = 100  # calls of a process that Python is told of
Program = Callable[["Run"], None]


class Run:
    """``python``: numbers of the calls that Python was asked about; ``norms``: by call, what torch's own hooks saw."""

    def __init__(self) -> None:
        self.session: Any = None
        self.recording: Any = None
        self.python: list[int] = []
        self.norms: list[list[float]] | None = None

    def backward(self, *losses: Any, **keywords: Any) -> None:
        handles = []
        if self.norms is not None:
            seen: list[float] = []
            self.norms.append(seen)
            nodes = list(dict.fromkeys(loss.grad_fn for loss in losses))
            for node in nodes:
                below = dict.fromkeys(each for each, _ in node.next_functions if each is not None)
                nodes += [each for each in below if each not in nodes]
            for node in nodes:
                take = lambda grads: seen.append(next(g for g in grads if g is not None).norm().item())  # noqa: E731
                handles.append(node.register_prehook(take))
        try:
            torch.autograd.backward(losses, **keywords)
        finally:
            for handle in handles:
                handle.remove()


@contextlib.contextmanager
def recorded(folder: Path, core: Any, patch: pytest.MonkeyPatch) -> Iterator[Run]:
    """``core`` None: with hooks in Python."""
    assert core is None or load.check(core) == ""
    patch.setattr(load, "_answer", [(core, "" if core is not None else "not here")])
    run, problems = Run(), list[str]()

    class Silent:
        def event(self, body: object, droppable: bool = False) -> None:
            """Nobody is there."""

    passed = Surveyor.passed

    def counted(self: Any, sink: Any, begin: Any, frame: Any) -> Any:
        run.python.append(begin.number)
        return passed(self, sink, begin, frame)

    patch.setattr(Surveyor, "passed", counted)
    recorder = Recorder.open(folder, 0, problems.append)
    run.recording = Recording(recorder)
    run.recording.every = True
    run.session = session = Session(Silent())
    session.set_filters([])
    session.observe(Gatherer(session), Collector(lambda: session.notify), run.recording)
    session.set_stacks(True)
    session.attach()
    backend = TorchBackend()
    backend.prepare(False)
    session.add_backend(backend)
    try:
        yield run
    finally:
        session.detach()
        recorder.close()
        patch.setattr(Surveyor, "passed", passed)
    assert problems == []


class Model:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        self.root = torch.ones(3, requires_grad=True)
        self.hidden: Any = None
        self.at_tanh: Callable[[Any], Any] = lambda grad: None

    def loss(self, rows: int = 6, deeper: bool = False) -> Any:
        x = torch.linspace(-1, 1, 4 * rows).reshape(rows, 4)
        hidden = self.hidden = self.net[1](self.net[0](x))
        hidden.register_hook(lambda grad: self.at_tanh(grad))
        out = self.net[2](hidden)
        if deeper:
            out = out.sin()
        return out.square().mean() + (self.root.sqrt() * 0).sum()

    def step(self, run: Run, roots: int = 1, twice: bool = False, **how: Any) -> None:
        for parameter in (*self.net.parameters(), self.root):
            parameter.grad = None
        losses = [self.loss(**how) for _ in range(roots)]
        try:
            for again in [False, True][not twice :]:
                run.backward(*losses, retain_graph=not again)
        finally:
            self.hidden = None  # its graph is gone, and with it the accumulate nodes
        with torch.no_grad():
            for parameter in self.net.parameters():
                parameter -= 0.01 * parameter.grad.nan_to_num()


def everything(run: Run) -> None:
    """Calls like those before them, all from the same lines, and among them each that is not."""
    model = Model()

    def fails(grad: Any) -> None:
        with torch.no_grad():
            model.hidden.add_(1.0)  # what tanh has saved

    def nested(grad: Any) -> None:
        leaf = torch.full((2,), 3.0, requires_grad=True)
        with torch.enable_grad():
            inner = (leaf * leaf).sum()
        run.backward(inner)

    quiet = model.at_tanh
    before: dict[int, Callable[[], object]] = {
        FIRST + 20: lambda: model.root.data.zero_(),  # the loss is finite, one gradient is not
        FIRST + 22: lambda: model.root.data.fill_(-1.0),  # the loss is not
        FIRST + 24: lambda: model.root.data.fill_(1.0),
        FIRST + 30: lambda: setattr(model, "at_tanh", fails),
        FIRST + 31: lambda: setattr(model, "at_tanh", nested),
        FIRST + 34: lambda: setattr(model, "at_tanh", quiet),
    }
    how: dict[int, dict[str, Any]] = {FIRST + 38: {"deeper": True}, FIRST + 70: {"twice": True}}
    how |= {FIRST + 42 + place: {"rows": rows} for place, rows in enumerate((9, 6, 9, 7, 6, 9, 6))}
    how |= {FIRST + 60 + place: {"roots": 2} for place in range(4)}

    def steps(first: int, last: int) -> None:
        for number in range(first, last):
            before.get(number, lambda: None)()
            with contextlib.suppress(RuntimeError):
                model.step(run, **how.get(number, {}))

    for first, last, apart in ((0, FIRST + 80, False), (0, 6, True), (0, 20, False)):
        thread = threading.Thread(target=lambda: steps(first, last)) if apart else None  # noqa: B023  (it ends here)
        if thread is not None:
            thread.start()
            thread.join()
        else:
            steps(first, last)
    loss = model.loss()
    for _ in range(2):
        with contextlib.suppress(RuntimeError):  # a second time
            run.backward(loss)


def calls_of(reader: RunReader) -> list[Any]:
    return [dataclasses.replace(call, seq=0, time=0.0, us=0.0, end_seq=0, thread=0) for call in reader.backwards()]


def same_rows(one: RunReader, other: RunReader) -> None:
    calls = calls_of(one)
    assert calls == calls_of(other)
    kinds = "SELECT kind, path, text FROM artifact ORDER BY kind, path, text"
    assert one._db.execute(kinds).fetchall() == other._db.execute(kinds).fetchall()
    for call in calls:
        rows, others = one.graph(call.number), other.graph(call.number)
        assert len(rows) == len(others) == call.nodes, call
        assert one.edges(call.number) == other.edges(call.number)
        for row, its in zip(rows, others, strict=True):
            assert dataclasses.replace(row, us=None, norm=None) == dataclasses.replace(its, us=None, norm=None), call
            assert (row.us is None) == (its.us is None)
            assert row.norm is its.norm is None or row.norm == pytest.approx(its.norm, rel=1e-5, nan_ok=True)
            assert one.forward_stack(call.number, row.index) == other.forward_stack(call.number, row.index) != []
        events = [
            sorted((e.index, e.phase, e.nonfinite, e.us is None) for e in reader.events(call.number))
            for reader in (one, other)
        ]
        assert events[0] == events[1], call


def in_order(reader: RunReader) -> None:
    """One counter numbers all; the nodes of a call lie between its ends."""
    calls = {call.number: call for call in reader.backwards()}
    events = reader.events()
    ends = [seq for call in calls.values() for seq in (call.seq, call.end_seq)]
    whole = [event.seq for event in events] + ends
    assert len(set(whole)) == len(whole)
    for event in events:
        call = calls[event.backward]
        assert call.seq < event.seq < call.end_seq and call.time - 0.01 <= event.time, call


def test_a_record_is_row_for_row_that_of_python_hooks(
    core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    readers = []
    for name, extension in (("native", core), ("python", None)):
        with recorded(tmp_path / name, extension, monkeypatch) as run:
            everything(run)
        readers.append(RunReader(tmp_path / name))
        total = len(readers[-1].backwards())
        if extension is not None:
            assert len(run.python) < FIRST + 60 and total > FIRST + 70, "the others ran without Python"
    same_rows(*readers)
    in_order(readers[0])
    errors = [call.error for call in readers[0].backwards() if call.error]
    assert len(errors) == 2 and "modified by an inplace" in errors[0]
    assert [call.depth for call in readers[0].backwards()].count(1) == 3
    # What torch's own hooks are given, in the order in which they run, without adbg.
    witness = Run()
    witness.norms = []
    everything(witness)
    outer = list(readers[0].backwards())
    assert len(witness.norms) == len(outer)
    for call, norms in zip(outer, witness.norms, strict=True):
        seen = [e.norm for e in sorted(readers[0].events(call.number), key=lambda e: e.seq) if e.phase == "before"]
        assert all(norm is not None for norm in seen)
        assert norms == pytest.approx(seen, rel=1e-4, nan_ok=True), call
    bad = [call.number for call in outer if any(e.nonfinite for e in readers[0].events(call.number))]
    assert bad == [number + 1 for number, norms in enumerate(witness.norms) if not all(map(math.isfinite, norms))] != []


def test_threads_at_the_same_time(core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(run: Run, rows: int, model: Model) -> None:
        for _ in range(120):
            model.step(run, rows=rows)

    norms: dict[int, list[Any]] = {}
    for rows in (3, 4, 5):  # each thread's own, by torch's hooks
        witness = Run()
        witness.norms = norms[rows] = []
        train(witness, rows, Model())
    with recorded(tmp_path / "run", core, monkeypatch) as run:
        threads = [threading.Thread(target=train, args=(run, rows, Model())) for rows in (3, 4, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(run.python) < 300
    reader = RunReader(tmp_path / "run")
    in_order(reader)
    by_thread: dict[int, list[Any]] = {}
    for call in reader.backwards():
        by_thread.setdefault(call.thread, []).append(call)
    assert sorted(len(calls) for calls in by_thread.values()) == [120] * 3
    for calls in by_thread.values():
        shapes = {row.shape for call in calls for row in reader.graph(call.number) if row.name == "TanhBackward0"}
        (rows,) = {shape[0] for shape in shapes if shape}
        for call, expected in zip(calls, norms[rows], strict=True):
            seen = [e.norm for e in reader.events(call.number) if e.phase == "before"]
            assert expected == pytest.approx(seen, rel=1e-4)


def alone(run: Run, model: Model, inside: Callable[[Any], Any]) -> None:
    """Call ``inside`` in a hook of call FIRST + 32, which began without Python, and make another one behind it."""
    quiet = model.at_tanh
    for number in range(1, FIRST + 34):
        model.at_tanh = inside if number == FIRST + 32 else quiet
        model.step(run)
    assert FIRST + 32 not in run.python


@pytest.mark.parametrize("how", ["off", "breakpoint", "detach"])
def test_what_changes_in_the_middle(core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    """A call that runs while recording ends, or a breakpoint comes, is told with its nodes if somebody is left."""
    model = Model()
    with recorded(tmp_path / "run", core, monkeypatch) as run:

        def change(grad: Any) -> None:
            if how == "off":
                run.session.change(lambda: setattr(run.recording, "every", False))
            elif how == "breakpoint":
                run.session.set_breakpoints([BreakpointRequest("NoSuchNode", 1)])
            else:
                run.session.detach()

        alone(run, model, change)
    reader = RunReader(tmp_path / "run")
    numbers = [call.number for call in reader.backwards()]
    last = {"off": 2, "breakpoint": 3, "detach": 1}[how]
    assert numbers == list(range(1, FIRST + 31 + last))
    nodes = {n: len(reader.events(n)) for n in numbers}
    whole = nodes[1]
    assert whole and all(nodes[n] == whole for n in itertools.takewhile(lambda n: n <= FIRST + 31, numbers))
    if how == "breakpoint":
        assert set(nodes.values()) == {whole}
        assert all(len(reader.graph(number)) == whole // 2 for number in numbers)


def test_a_stop_inside_one(core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``breakpoint()`` in a hook of a call that began without a word: the record has all of it."""
    model, stops = Model(), list[Any]()
    with recorded(tmp_path / "run", core, monkeypatch) as run:
        run.session.park = lambda point, running: stops.append((point, running))
        alone(run, model, lambda grad: run.session.break_at(sys._getframe()))
        assert len(stops) == 1
    reader = RunReader(tmp_path / "run")
    calls = reader.backwards()
    assert [call.number for call in calls] == list(range(1, FIRST + 34)) and stops[0][1].call.number == FIRST + 32
    assert {len(reader.events(call.number)) for call in calls} == {2 * calls[0].nodes}
    assert {len(reader.graph(call.number)) for call in calls} == {calls[0].nodes}
    in_order(reader)


def test_nothing_is_kept_of_one_that_python_took_over(
    core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, kept = Model(), list[Any]()

    def step(run: Run, rows: int) -> None:
        loss = model.loss(rows)
        model.hidden = None
        kept.append(weakref.ref(loss))
        run.backward(loss)

    with recorded(tmp_path / "run", core, monkeypatch) as run:
        gc.disable()
        try:
            for number in range(1, FIRST + 40):
                step(run, 9 if number == FIRST + 32 else 6)
        finally:
            gc.enable()
        assert FIRST + 32 not in run.python
        assert [number for number, loss in enumerate(kept, 1) if loss() is not None] == []
    shapes = [row.shape for row in RunReader(tmp_path / "run").graph(FIRST + 32)]
    assert (9, 8) in shapes
