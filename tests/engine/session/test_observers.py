"""What observers are told, in which order, and what one that is not active costs: nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_backend import FakeBackend, FakeGraph

from adbg.engine.backends.base import HookPlan
from adbg.engine.protocol.messages import BreakpointRequest, BreakpointState
from adbg.engine.session.observers import Notify, Observer
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import BriefCall


class Lines:
    """The outlet: keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, body: Any, droppable: bool = False) -> None:
        self.said.append(getattr(body, "output", body.EVENT))


class NodesPerModule(Observer):
    """The toy of the design: counts nodes per module."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    @property
    def arms(self) -> bool:
        return True

    def plan(self, running: Running) -> HookPlan | None:
        return HookPlan(every=True)

    def node_end(self, visit: Visit) -> None:
        module = visit.running.call.describe(visit.key).module or ""
        self.counts[module] = self.counts.get(module, 0) + 1


class Everything(NodesPerModule):
    """Writes down what it is told."""

    def __init__(self, name: str, told: list[str]) -> None:
        super().__init__()
        self.name, self.told = name, told

    def _note(self, what: str) -> None:
        self.told.append(f"{self.name} {what}")

    def before_backward(self) -> None:
        self._note("before_backward")

    def backward_begin(self, running: Running) -> None:
        self._note("backward_begin")

    def node_begin(self, visit: Visit) -> None:
        assert visit.outs and visit.ins is None
        self._note(f"node_begin {visit.index}")

    def node_enter(self, visit: Visit) -> None:
        assert visit.outs == (), "kept alive, a gradient could not be changed in place by the node"
        self._note("node_enter")

    def node_leave(self, visit: Visit) -> None:
        self._note("node_leave")

    def node_end(self, visit: Visit) -> None:
        assert visit.us is not None and visit.ins is not None and visit.outs
        self._note("node_end")

    def node_passed(self, visit: Visit) -> None:
        self._note("node_passed")

    def stopped(self, point: PausedPoint, changed: Sequence[BreakpointState]) -> None:
        self._note(f"stopped {point.stop.phase.value}")

    def resumed(self, running: Running) -> None:
        self._note("resumed")

    def release(self, running: Running, error: BaseException | None) -> None:
        self._note("release")

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        self._note("backward_end")

    def detach(self) -> None:
        self._note("detach")


@pytest.fixture
def session() -> Session:
    session = Session(Lines())
    session.set_filters([])
    session.attach()
    session.add_backend(FakeBackend())
    return session


def run(session: Session) -> None:
    (backend,) = session.backends
    assert isinstance(backend, FakeBackend)
    backend.backward(FakeGraph.chain(3))


def test_a_toy_counts_nodes_per_module(session: Session) -> None:
    toy = NodesPerModule()
    session.observe(toy)
    run(session)
    assert sum(toy.counts.values()) == 4 and set(toy.counts) == {"layers.1", "layers.2", "layers.3", ""}
    session.detach()
    run(session)
    assert sum(toy.counts.values()) == 4, "without a client nothing is told"


def test_all_is_told_in_order_to_one_after_the_other(session: Session) -> None:
    told: list[str] = []
    session.observe(Everything("a", told), Everything("b", told))
    run(session)
    node = ["node_begin {}", "node_enter", "node_leave", "node_end", "node_passed"]
    nodes = [each.format(index) for index in (1, 2, 3, 4) for each in node]
    wanted = ["before_backward", "backward_begin", *nodes, "release", "backward_end"]
    assert told == [f"{name} {what}" for what in wanted for name in "ab"]
    told.clear()
    session.detach()
    assert told == ["a detach", "b detach"]


def test_stops_lie_between_begin_and_enter_and_between_end_and_passed(session: Session) -> None:
    class Resumes(Everything):
        def stopped(self, point: PausedPoint, changed: Sequence[BreakpointState]) -> None:
            super().stopped(point, changed)
            assert session.parked is not None
            session.parked.resume()

    told: list[str] = []
    session.observe(Resumes("a", told))
    session.set_breakpoints([BreakpointRequest("#2", id=1), BreakpointRequest("#2 after", id=2)])
    run(session)
    second = told[told.index("a node_begin 2") : told.index("a node_begin 3")]
    stop = "stopped {}", "resumed"
    before, after = ([f"a {each.format(phase)}" for each in stop] for phase in ("before", "after"))
    assert second == ["a node_begin 2", *before, "a node_enter", "a node_leave", "a node_end", *after, "a node_passed"]


def test_one_that_is_not_active_is_not_called_at_all(session: Session) -> None:
    class Sleeping(Everything):
        awake = False

        @property
        def active(self) -> bool:
            return self.awake

        @property
        def arms(self) -> bool:
            return self.awake

    told: list[str] = []
    sleeper = Sleeping("a", told)
    session.observe(sleeper)
    assert all(getattr(session.notify, event) == () for event in Notify.__annotations__)
    run(session)
    assert told == []
    session.change(lambda: setattr(sleeper, "awake", True))
    assert session.notify.node_end == (sleeper.node_end,) and session.notify.looked_into == (), "not overridden"
    run(session)
    assert told[-1] == "a backward_end"


def test_one_that_is_added_before_a_backward_is_told_of_it(session: Session) -> None:
    told: list[str] = []

    class Late(Observer):
        def before_backward(self) -> None:
            if not told:
                session.observe(Everything("late", told))

    session.observe(NodesPerModule(), Late())
    run(session)
    assert told[:2] == ["late backward_begin", "late node_begin 1"] and told[-1] == "late backward_end"


def test_what_one_raises_is_said_once_and_the_backward_ends_well(session: Session) -> None:
    class Broken(NodesPerModule):
        def node_begin(self, visit: Visit) -> None:
            raise ValueError("no figure")

    session.observe(Broken())
    run(session)
    outlet = session._outlet
    assert isinstance(outlet, Lines)
    assert outlet.said == ["a hook failed and was passed over: ValueError: no figure\n"]


def test_one_that_cannot_detach_keeps_no_other_from_it(session: Session) -> None:
    told: list[str] = []

    class Stuck(Observer):
        def detach(self) -> None:
            raise OSError("disk full")

    session.observe(Stuck(), Everything("a", told))
    session.detach()
    assert told == ["a detach"]


def test_the_end_of_a_brief_call_is_told_once(session: Session) -> None:
    told: list[object] = []

    class Brief(Observer):
        def brief_begin(self, call: BriefCall) -> None:
            told.append(("begin", call.number))

        def brief_end(self, run: Any) -> None:
            told.append(("end", run.call.number, run.error))

    session.observe(Brief())
    (hooks,) = session.hooks
    for number in (7, 8):
        hooks.brief_begin(BriefCall(number, 3, ("Sum",), "backward", number, 1, "train.py", 2))
    hooks.brief_end(7, 12.0, ValueError("gone"))
    hooks.brief_end(7, 12.0, None)
    assert told == [("begin", 7), ("begin", 8), ("end", 7, "ValueError: gone")]
