"""Who is told in batches: observers, the record and whoever looks at a stop. Beside hooks in Python, and torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adbg.engine.backends.torch.backend import TorchBackend  # noqa: E402
from adbg.engine.native import load  # noqa: E402
from adbg.engine.node_batch import NodeBatch  # noqa: E402
from adbg.engine.protocol import messages as p  # noqa: E402
from adbg.engine.record.observers import Recording  # noqa: E402
from adbg.engine.record.reader import RunReader  # noqa: E402
from adbg.engine.record.recorder import Recorder  # noqa: E402
from adbg.engine.session.collecting import Collector  # noqa: E402
from adbg.engine.session.observers import Observer  # noqa: E402
from adbg.engine.session.running_call import Running, Visit  # noqa: E402
from adbg.engine.session.session import Session  # noqa: E402

pytestmark = pytest.mark.torch


class Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, extension: Any, *observers: Observer) -> Iterator[Session]:
    """``extension`` None: with hooks in Python."""
    assert extension is None or load.check(extension) == ""
    monkeypatch.setattr(load, "_answer", [(extension, "" if extension is not None else "not here")])
    session = Session(Silent())
    session.set_filters([])
    session.observe(Collector(lambda: session.notify), *observers)
    session.set_stacks(True)
    session.attach()
    backend = TorchBackend()
    backend.prepare(False)
    session.add_backend(backend)
    try:
        yield session
    finally:
        session.detach()


class Gate(torch.autograd.Function):
    """Its backward runs another one."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.detach())
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].requires_grad_()
            return grad * torch.autograd.grad(x.sin().sum(), x)[0]


def train(net: Any, steps: int, sizes: tuple[int, ...] = (6,)) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        x = torch.linspace(-1, 1, 4 * sizes[step % len(sizes)]).reshape(-1, 4)
        optimizer.zero_grad()
        out = net(x)
        (Gate.apply(out).sum() + out.square().mean()).backward()
        optimizer.step()


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


class Batches(Observer):
    def __init__(self) -> None:
        self.told: list[tuple[int, NodeBatch]] = []
        self.visits = 0
        self.on = True

    @property
    def active(self) -> bool:
        return self.on

    @property
    def arms(self) -> bool:
        return True

    def node_events(self, running: Running, batch: NodeBatch) -> None:
        self.told.append((running.call.number, batch))

    def node_end(self, visit: Visit) -> None:
        self.visits += 1


def test_an_observer_is_told_of_every_node_without_a_hook(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches()
    with watched(monkeypatch, core, batches) as session:
        train(model(), 3)
        by_call = dict(batches.told)
        sizes = [len(batch) for batch in by_call.values()]
        assert sizes[-2:] == [2, 14] and batches.visits == 0  # the inner call ends first
        told = len(batches.told)
        session.change(lambda: setattr(batches, "on", False))
        train(model(), 1)
        assert len(batches.told) == told, "one that is not active is not told"
    assert core.torch_screening(0) == 0


def recorded(core: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, sizes: tuple[int, ...]) -> RunReader:
    problems: list[str] = []
    recorder = Recorder.open(folder, 0, problems.append)
    recording = Recording(recorder)
    recording.every = True
    with watched(monkeypatch, core, recording):
        train(model(), 5, sizes)
    recorder.close()
    assert problems == []
    return RunReader(folder)


def test_a_record_is_the_same_both_ways(core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calls, rows, stacks, edges, events in their order; two shapes of the same graph are kept apart."""
    ways = (("native", core), ("python", None))
    packed, plain = [recorded(way, monkeypatch, tmp_path / name, (6, 9)) for name, way in ways]
    assert packed._db.execute("SELECT count(*) FROM same_graph").fetchone()[0] > 0
    assert packed._db.execute("SELECT count(*) FROM nodes_ran").fetchone()[0] > 3
    calls = [
        [dataclasses.replace(call, seq=0, time=0.0, us=0.0, end_seq=0, thread=0) for call in reader.backwards()]
        for reader in (plain, packed)
    ]
    assert calls[0] == calls[1] and len(calls[0]) == 10
    for call in calls[0]:
        rows, others = ([*reader.graph(call.number)] for reader in (plain, packed))
        assert len(rows) == call.nodes == len(others)
        for row, other in zip(rows, others, strict=True):
            assert dataclasses.replace(row, us=None, norm=None) == dataclasses.replace(other, us=None, norm=None)
            assert row.norm == pytest.approx(other.norm, rel=1e-5) and (row.us is None) == (other.us is None)
            assert plain.forward_stack(call.number, row.index) == packed.forward_stack(call.number, row.index) != []
        assert plain.edges(call.number) == packed.edges(call.number)
        events = [[(e.index, e.phase) for e in reader.events(call.number)] for reader in (plain, packed)]
        assert sorted(events[0]) == sorted(events[1]) and len(events[0]) == 2 * len(rows)
    whole = [event.seq for event in packed.events()]
    assert whole == sorted(set(whole)), "one counter numbers all"
    shapes = {tuple(row.shape or ()) for call in calls[0] for row in packed.graph(call.number)}
    assert {(6, 3), (9, 3)} <= shapes


def test_an_exception_is_recorded_the_same_both_ways(
    core: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Fails(torch.autograd.Function):
        now = False

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if Fails.now:
                raise ValueError("planted")
            return grad

    found = []
    for name, extension in (("python", None), ("native", core)):
        recorder = Recorder.open(tmp_path / name, 0)
        recording = Recording(recorder)
        recording.every = True
        x = torch.ones(3, requires_grad=True)
        with watched(monkeypatch, extension, recording):
            for Fails.now in (False, False, False, True):
                loss = (Fails.apply(x * 2) * 3).sum()
                with contextlib.suppress(ValueError):
                    loss.backward()
        recorder.close()
        reader = RunReader(tmp_path / name)
        call = reader.backwards()[-1]
        rows = [(row.unique_name, row.state, row.norm and round(row.norm, 4)) for row in reader.graph(call.number)]
        packed = reader._db.execute("SELECT count(*) FROM nodes_ran").fetchone()[0]
        assert packed == (0 if extension is None else 3)
        found.append((call.error, rows, [(event.index, event.phase) for event in reader.events(call.number)]))
    assert found[0] == found[1] and "planted" in found[0][0]


class Looks(Observer):
    """Stands in for the front end: it looks at what is known of the nodes at a stop, and lets the thread go on."""

    def __init__(self) -> None:
        self.session: Any = None
        self.seen: list[tuple[str, dict[int, Any]]] = []
        self.told: list[tuple[int, int]] = []
        self.norms: list[float] = []  # what torch's own hooks saw
        self.ran: list[int] = []  # how many of these at each stop

    def node_events(self, running: Running, batch: NodeBatch) -> None:
        self.told.append((running.call.number, len(batch)))

    def stopped(self, point: Any, changed: Any) -> None:
        state = point.calls[-1]
        figures = {state.index_of(key): (ran.norm, ran.us) for key, ran in state.ran.items()}
        self.seen.append((point.stop.node.unique_name, figures))
        self.ran.append(len(self.norms))
        self.session.parked.resume()


def test_at_a_stop_every_node_that_ran_has_its_figures(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A breakpoint takes one node; the norms of the others are those that torch's own hooks see."""
    looks = Looks()
    with watched(monkeypatch, core, looks) as session:
        looks.session = session
        train(model(), 2)
        (state,) = session.set_breakpoints([p.BreakpointRequest("TanhBackward0", id=1)])
        assert state.verified
        out = model()(torch.linspace(-1, 1, 24).reshape(6, 4))
        loss = out.square().mean()
        nodes = [loss.grad_fn]
        for node in nodes:
            nodes += [below for below, _ in node.next_functions if below is not None and below not in nodes]
        for node in nodes:
            node.register_prehook(lambda grads: looks.norms.append(grads[0].norm().item()))
        loss.backward()
    assert looks.seen[0][0] == "TanhBackward0#1"
    figures = looks.seen[0][1]
    assert sorted(figures) == list(range(1, len(figures) + 1)) and len(figures) >= 5
    assert looks.ran == [len(figures) + 1], "torch's hook on the node at hand runs before adbg's"
    assert [figures[index][0] for index in sorted(figures)] == pytest.approx(looks.norms[: len(figures)], rel=1e-5)
    assert all(us is not None and us > 0 for _, us in figures.values())
    assert sum(count for _, count in looks.told[-3:]) == len(nodes), "the rest is told at the end"
