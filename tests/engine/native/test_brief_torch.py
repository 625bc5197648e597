"""Calls that are passed over without Python: every one is told, in order, with what it was; whatever changes is seen at
the very next call. The script's own counts are the witness."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adbg.engine.backends.torch.backend import TorchBackend  # noqa: E402
from adbg.engine.backends.torch.native.survey import Surveyor  # noqa: E402
from adbg.engine.native import load  # noqa: E402
from adbg.engine.protocol.messages import BreakpointRequest  # noqa: E402
from adbg.engine.session.observers import Observer  # noqa: E402
from adbg.engine.session.session import Session  # noqa: E402
from adbg.engine.session.told_later import Gatherer  # noqa: E402
from adbg.engine.types import BriefCall, BriefRun, BriefRuns  # noqa: E402

pytestmark = pytest.mark.torch


class Outlet:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def event(self, body: Any, droppable: bool = False) -> None:
        self.events.append(body)


class Heard(Observer):
    """What is told of calls, and that it may be later."""

    def __init__(self) -> None:
        self.runs: list[BriefRun] = []
        self.told: list[tuple[str, int]] = []
        self.patient = True
        self.cell: memoryview | None = None

    def brief_runs(self, runs: BriefRuns) -> None:
        first = runs.call
        for place, (began, us) in enumerate(zip(runs.began, runs.us, strict=True)):
            call = first._replace(number=first.number + place, iteration=first.iteration + place)
            self.brief_end(BriefRun(call, began, False, us))

    def brief_begin(self, call: BriefCall) -> None:
        self.told.append(("begin", call.number))

    def brief_end(self, run: BriefRun) -> None:
        self.runs.append(run)
        self.told.append(("end", run.call.number))

    def backward_begin(self, running: Any) -> None:
        self.told.append(("looked", running.call.number))


class Hurry(Observer):
    """``zero`` is another number where calls must be told at once."""

    patient = True

    def __init__(self) -> None:
        self.zero = ctypes.c_int32(0)

    @property
    def zeros(self) -> tuple[ctypes.c_int32, ...]:
        return (self.zero,)


class Run:
    def __init__(self, session: Session, backend: TorchBackend, heard: Heard, outlet: Outlet) -> None:
        self.session, self.backend, self.heard, self.outlet = session, backend, heard, outlet
        self.zero: Any = None
        self.python = 0  # calls that Python was asked about

    def watch(self, spec: str) -> None:
        (state,) = self.session.set_breakpoints([BreakpointRequest(spec, 1, trace=True)])
        assert state.verified, state

    def numbers(self) -> list[int]:
        self.session.hooks[0].gather()
        return [run.call.number for run in self.heard.runs]


@pytest.fixture
def run(core: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    assert load.check(core) == ""
    monkeypatch.setattr(load, "_answer", [(core, "")])
    outlet = Outlet()
    session = Session(outlet)
    heard = Heard()
    made: list[Run] = []
    passed = Surveyor.passed

    def counted(self: Any, *arguments: Any) -> Any:
        made[0].python += 1
        return passed(self, *arguments)

    monkeypatch.setattr(Surveyor, "passed", counted)
    backend = TorchBackend()
    made.append(Run(session, backend, heard, outlet))
    hurry = Hurry()
    made[0].zero = hurry.zero
    session.observe(Gatherer(session), heard, hurry)
    session.set_filters([])
    session.attach()
    session.add_backend(backend)
    yield made[0]
    session.detach()
    assert torch.autograd.Variable._execution_engine is not None
    core.torch_events(False)


FIRST = 100  # calls of a process that Python is asked about


class Step:
    def __init__(self) -> None:
        self.a, self.b = (torch.full((3,), value, requires_grad=True) for value in (1.0, 2.0))

    def __call__(self) -> None:
        (self.a * self.b).sum().backward()

    def other(self) -> None:
        (self.a + self.b).exp().sum().backward()

    def tanh(self) -> None:
        (self.a * self.b).tanh().sum().backward()


LINES = {name: getattr(Step, name).__code__.co_firstlineno + 1 for name in ("__call__", "other", "tanh")}


def test_all_are_told_in_order_with_what_they_were(run: Run) -> None:
    run.watch("NoSuchNode")
    step, since = Step(), time.monotonic()
    for _ in range(150):
        step()
        step.other()
    python, quarters = run.python, (time.monotonic() - since) / 0.25
    assert run.numbers() == list(range(1, 301))
    assert FIRST <= python <= FIRST + 4 + 2 * quarters, f"Python was asked about {python} of 300 calls"
    calls = [each.call for each in run.heard.runs]
    assert [call.iteration for call in calls] == list(range(1, 301)) and run.backend.iteration == 300
    assert {(call.line, call.nodes, call.roots) for call in calls[::2]} == {(LINES["__call__"], 4, ("SumBackward0",))}
    assert {(call.line, call.nodes, call.roots) for call in calls[1::2]} == {(LINES["other"], 5, ("SumBackward0",))}
    assert {(call.file, call.entry, call.thread) for call in calls} == {(__file__, "backward", threading.get_ident())}
    began = [each.began for each in run.heard.runs]
    assert began == sorted(began) and time.time() - 60 < began[0] and all(each.us > 0 for each in run.heard.runs)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.watch("MulBackward0"),
        lambda run: run.session.pause(),
        lambda run: run.session.set_breakpoints([BreakpointRequest("nonfinite", 1, trace=True)]),
        lambda run: setattr(run.heard, "patient", False) or run.session.rearm(),
        lambda run: setattr(run.zero, "value", 1),
    ],
)
def test_a_change_is_seen_at_the_next_call(run: Run, change: Callable[[Run], None]) -> None:
    run.watch("NoSuchNode")
    step = Step()
    for _ in range(FIRST + 50):
        step()
    before = run.python
    assert before < FIRST + 45
    stopped: list[Any] = []
    run.session.park = lambda point, running: stopped.append(point) or setattr(run.session, "pausing", False)  # type: ignore[assignment, method-assign, func-returns-value]
    change(run)
    step()
    assert run.python == before + 1
    assert run.numbers()[: FIRST + 50] == list(range(1, FIRST + 51))
    assert {("looked", FIRST + 51), ("begin", FIRST + 51)} & set(run.heard.told)


def test_another_graph_at_the_same_line_is_looked_at(run: Run) -> None:
    run.watch("TanhBackward0")
    step, seen = Step(), []
    for _ in range(FIRST):
        step()
    before = run.python
    for number in range(FIRST + 1, FIRST + 61):
        y = step.a * step.b
        if number % 20 == 0:
            y = y.tanh()
            seen.append(number)
        y.sum().backward()
    looked = [number for what, number in run.heard.told if what == "looked" and number > FIRST + 1]
    assert looked == seen and run.numbers() == [number for number in range(1, FIRST + 61) if number not in looked]
    assert run.python < before + 40


def test_a_call_that_is_only_watched_is_passed_over_from_the_next_one_on(run: Run) -> None:
    """The watch hooks every node of the first one: that is no breakpoint by place that took one."""
    requests = [BreakpointRequest("param:nothing", 1, trace=True), BreakpointRequest("nonfinite", 2, trace=True)]
    assert all(state.verified for state in run.session.set_breakpoints(requests))
    step = Step()
    for _ in range(FIRST + 50):
        step()
    looked = [number for what, number in run.heard.told if what == "looked"]
    assert looked == list(range(1, len(looked) + 1)) and len(looked) <= 3, "checks, and the first of its kind"
    assert run.numbers() == list(range(len(looked) + 1, FIRST + 51)) and run.python < FIRST + 45


def test_what_cannot_be_passed_so_is_not(run: Run) -> None:
    run.watch("NoSuchNode")
    step = Step()
    for _ in range(FIRST + 30):
        step()
    loss = (step.a * step.b).sum()
    for call in (
        lambda: torch.autograd.grad(loss, [step.a], retain_graph=True),
        lambda: loss.backward(create_graph=True),
        lambda: loss.backward(inputs=[step.b], retain_graph=True),
    ):
        before = run.python
        call()
        assert run.python == before + 1
    assert run.backend.iteration == FIRST + 33
    with torch.autograd.graph.save_on_cpu(), torch.utils._python_dispatch._disable_current_modes():
        step()
    assert run.backend.iteration == FIRST + 34


def test_an_exception_in_one_is_told_as_ever(run: Run) -> None:
    run.watch("NoSuchNode")
    step = Step()
    fail = [False]

    def hook(grad: Any) -> None:
        if fail[0]:
            raise RuntimeError("gone")

    def hooked() -> None:
        y = step.a * step.b
        y.register_hook(hook)
        y.sum().backward()

    for _ in range(FIRST + 30):
        hooked()
    before, fail[0] = run.python, True
    with pytest.raises(RuntimeError, match="gone"):
        hooked()
    assert run.python == before, "it was passed over"
    fail[0] = False
    hooked()
    assert run.numbers() == list(range(1, FIRST + 33))
    assert [each.call.number for each in run.heard.runs if each.error] == [FIRST + 31]
    assert "gone" in run.heard.runs[FIRST + 30].error


def test_the_last_one_is_noted_while_it_runs(run: Run) -> None:
    notes = bytearray(24)
    noting = Heard()
    noting.cell = memoryview(notes)
    run.session.observe(noting)
    run.watch("NoSuchNode")
    step, inside = Step(), []

    def hooked() -> None:
        y = step.a * step.b
        y.register_hook(lambda grad: inside.append(struct.unpack("<Qdd", notes)))
        y.sum().backward()

    for _ in range(FIRST + 40):
        hooked()
    late = [seen for seen in inside[-10:] if seen[0]]  # but those that Python was asked about: nobody notes those here
    assert len(late) >= 8 and all(end == 0 for _, _, end in late)
    assert {number for number, _, _ in late} <= set(range(FIRST + 31, FIRST + 41))
    number, begin, end = struct.unpack("<Qdd", notes)
    assert number in (FIRST + 39, FIRST + 40) and time.time() - 60 < begin <= end <= time.time()
    run.session.unobserve(noting)
    for _ in range(3):
        hooked()
    assert struct.unpack("<Qdd", notes)[0] == number, "nobody wants notes any more"


def test_a_long_call_has_python_asked_about_the_next_ones_only(run: Run) -> None:
    """A hiccup of the machine in one call; then the calls are as short as before."""
    run.watch("NoSuchNode")
    step, pause = Step(), [0.0]

    def hooked() -> None:
        y = step.a * step.b
        y.register_hook(lambda grad: time.sleep(pause[0]))
        y.sum().backward()

    for _ in range(FIRST + 30):
        hooked()
    pause[0] = 0.05
    for _ in range(2):  # one of these at least is one that Python is not asked about
        hooked()
    pause[0] = 0.0
    before, since = run.python, time.monotonic()
    for _ in range(200):
        hooked()
    longest = 2 * sum(each.us > 20_000 for each in run.heard.runs)  # of these, too, by their own times
    quarters = (time.monotonic() - since) / 0.25
    assert run.python - before <= 4 + 2 * quarters + longest, f"Python was asked about {run.python - before} of 200"


def test_threads_are_told_each(run: Run) -> None:
    run.watch("NoSuchNode")
    together = threading.Barrier(3)  # a thread that begins when another one is over may have its number

    def train() -> None:
        step = Step()
        together.wait()
        for _ in range(100):
            step()
        together.wait()

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run.numbers()) == list(range(1, 301))
    by_thread = [each.call.thread for each in run.heard.runs]
    assert sorted(by_thread.count(thread) for thread in set(by_thread)) == [100, 100, 100]


def test_a_child_tells_nothing_of_its_parents(run: Run) -> None:
    run.watch("NoSuchNode")
    step = Step()
    for _ in range(FIRST + 30):
        step()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        told = -1
        try:
            run.session.abandon()
            told = len(run.backend._entry.calls._native.take())
            step()
        finally:
            os.write(write, struct.pack("i", told))
            os._exit(0)
    os.close(write)
    assert struct.unpack("i", os.read(read, 4)) == (0,)
    os.close(read)
    os.waitpid(child, 0)
    assert run.numbers() == list(range(1, FIRST + 31))


def test_wrong_arguments_are_python_errors(core: Any) -> None:
    parts = (torch.Tensor, torch.nn.Parameter, len, len, len, len, None)
    for arguments in ((), (1,), (len, len, len, (1, 2)), (len, len, len, [*parts])):
        with pytest.raises((TypeError, ValueError)):
            core.BriefCalls(*arguments)
    with pytest.raises(TypeError):
        core.BriefCall()
    calls = core.BriefCalls(lambda *given: given, lambda *given: given, print, parts)
    code = test_wrong_arguments_are_python_errors.__code__
    survey, notes = (1, 2, 3, 4), memoryview(bytearray(8))
    for arguments in (
        (),
        (calls.age, None, code, True, True, survey, None),
        (calls.age, code, code, True, True, (1, 2), None),
        (calls.age, code, code, True, True, (1, "x", 3, 4), None),
    ):
        with pytest.raises((TypeError, ValueError)):
            calls.allow(*arguments)
    for arguments in (
        (),
        (1, (), print, None),
        ((), (3,), print, None),
        ((), (notes,), print, None),
        ((), (), 3, None),
        ((), (), print, notes),
        ((), (), print, b"x" * 24),
    ):
        with pytest.raises((TypeError, ValueError, BufferError)):
            calls.listen(*arguments)
    assert calls.allow(calls.age, code, code, True, True, survey, None) is False, "nobody listens"
    calls.listen((), (), print, memoryview(bytearray(24)))
    assert calls.allow(calls.age + 1, code, code, True, True, survey, None) is False
    calls.forbid()
    for method, arguments in ((calls.last, ("x",)), (calls.used_up, (1,)), (calls.used_up, ("x", 2))):
        with pytest.raises((TypeError, ValueError)):
            method(*arguments)
    assert calls.begin((), {}) == ((), {}) and calls.begin(3, 4) == (3, 4) and calls.end(1, 2) == (1, 2)
    assert calls.begin(((),) * 5, {}) == (((),) * 5, {}) and calls.take() == [] and calls.count == 0
    assert (calls.next(True), calls.next(False), calls.count, calls.iteration) == (1, 2, 2, 1)
