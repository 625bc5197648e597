"""The core of diagnosis on the backend without a framework: when detectors are told of what, and what one costs that
fails, goes on and off, or computes something itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from fake_backend import FakeBackend, FakeGraph

from adbg.engine.backends.base import Need, Observation, OptimizerEvent, Tap, Watcher
from adbg.engine.diagnosis import diagnosis as core
from adbg.engine.diagnosis.detector import Detector
from adbg.engine.protocol.messages import Cause, DiagnosisEnds, Finding, Found
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.session import Session


class Outlet:
    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, body: Any, droppable: bool = False) -> None:
        self.said.append(getattr(body, "output", body.EVENT))


class Switch(Tap):
    """A tap that writes down when it is in; ``speak`` is what the program does."""

    def __init__(self, need: Need) -> None:
        self.need = need
        self.watcher: Watcher | None = None
        self.moves: list[str] = []

    def put_in(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.moves.append("in")

    def take_out(self) -> None:
        self.watcher = None
        self.moves.append("out")

    def speak(self, what: object) -> None:
        if self.watcher is not None:
            (self.watcher.optimizer if self.need is Need.STEPS else self.watcher.operator)(what)  # type: ignore[arg-type]


class TappedBackend(FakeBackend):
    def __init__(self) -> None:
        super().__init__()
        self.steps, self.operators = Switch(Need.STEPS), Switch(Need.OPERATORS)

    def observe(self, watcher: Watcher) -> Observation:
        return Observation((self.steps, self.operators), watcher)


class Noted(Detector):
    """Writes down what it is told."""

    kinds = ("noted",)
    needs = Need.STEPS
    sampled = Need.OPERATORS
    gradients = True
    made: ClassVar[list[Noted]] = []

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self.told: list[str] = []
        Noted.made.append(self)

    def _note(self, what: str) -> None:
        self.told.append(f"{what}{self.facts.iteration}")

    def backward_begin(self, running: Running) -> None:
        self._note("begin")

    def node_end(self, visit: Visit) -> None:
        self._note("node")

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        self._note("error" if error is not None else "end")

    def iteration_end(self) -> None:
        self._note("over")

    def optimizer(self, event: Any) -> None:
        self._note("step")

    def operator(self, call: Any) -> None:
        self._note("op")

    def uncaught(self, error: BaseException) -> None:
        self._note(f"uncaught {error} ")

    def end(self) -> None:
        self._note("last")


class World:
    """A session over one backend, and what is sent."""

    def __init__(self) -> None:
        self.outlet = Outlet()
        self.session = Session(self.outlet)
        self.session.set_filters([])
        self.session.attach()
        self.backend = TappedBackend()
        self.sent: list[Any] = []

    def diagnose(self, running: bool = False, **options: Any) -> core.Diagnosis:
        made = core.Diagnosis(self.session, self.sent.append, running=running, **options)
        self.session.observe(made)
        made.began()
        return made

    def iterate(self, count: int = 1) -> None:
        """Forward, backward, step."""
        for _ in range(count):
            self.backend.operators.speak("matmul")
            self.backend.backward(FakeGraph.chain(2))
            self.backend.steps.speak(OptimizerEvent("step", None, (), None))

    def findings(self) -> list[Finding]:
        return [each.finding for each in self.sent if isinstance(each, Found)]

    def results(self) -> dict[str, str]:
        (end,) = [each for each in self.sent if isinstance(each, DiagnosisEnds)]
        return {row.kind: row.result for row in end.examined}


@pytest.fixture
def detectors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[type[Detector]]]:
    """What ``known`` gives."""
    classes: list[type[Detector]] = [Noted]
    Noted.made = []
    monkeypatch.setattr(core, "known", lambda: iter(classes))
    yield classes


def finding(facts: Any, message: str, **fields: Any) -> Finding:
    kind, severity = fields.pop("kind", "noted"), fields.pop("severity", "error")
    return Finding(0, kind, severity, fields.pop("confidence", 0.95), message, **fields)


def test_an_iteration_in_its_order_from_the_import_on(detectors: list[type[Detector]]) -> None:
    world = World()
    diagnosis = world.diagnose()
    world.session.add_backend(world.backend)
    world.iterate(2)
    diagnosis.program_ends(None)
    told = [each for each in Noted.made[0].told if not each.startswith("node")]
    assert told == ["op0", "begin1", "end1", "step1", "op1", "over1", "begin2", "end2", "step2", "over2", "last2"]
    assert Noted.made[0].told.count("node1") == 3, "Mul, Add and the leaf"
    assert world.backend.steps.moves == ["in", "out"] and world.backend.operators.moves[-1] == "out"
    assert world.results() == {"noted": "clear"}
    assert [each.iterations for each in world.sent] == [2]


def test_costly_looks_are_sampled_and_deep_ones_are_not(detectors: list[type[Detector]]) -> None:
    def looked(**options: Any) -> list[int]:
        Noted.made = []
        world = World()
        world.diagnose(**options)
        world.session.add_backend(world.backend)
        world.iterate(17)
        return sorted({int(each[4:]) for each in Noted.made[0].told if each.startswith("node")})

    assert looked() == [1, 2, 3, 8, 10, 11, 16]
    assert looked(deep=True) == list(range(1, 18))


def test_it_looks_closely_from_when_it_is_asked_to(detectors: list[type[Detector]]) -> None:
    world = World()
    diagnosis = world.diagnose()
    world.session.add_backend(world.backend)
    world.iterate(5)
    diagnosis.look_closely()
    world.iterate(5)
    looked = sorted({int(each[4:]) for each in Noted.made[0].told if each.startswith("node")})
    assert looked == [1, 2, 3, 7, 8, 9, 10], "the sixth was under way"


def test_what_begins_in_a_running_program_begins_with_a_whole_iteration(detectors: list[type[Detector]]) -> None:
    world = World()
    world.session.add_backend(world.backend)
    world.iterate(2)
    diagnosis = world.diagnose(running=True)
    assert world.backend.steps.moves == [], "taps go in on a thread of the program's"
    assert Noted.made[0].told == []
    world.iterate(2)
    assert [each for each in Noted.made[0].told if not each.startswith("node")][:4] == [
        "step0",
        "op0",
        "begin1",
        "end1",
    ]
    facts = Noted.made[0].facts
    facts.tell(finding(facts, "now"))
    assert world.findings()[0].iteration == 4, "counted from the program's begin"
    diagnosis.stop(here=False)
    assert diagnosis.active and diagnosis.stopping
    world.iterate()
    assert not diagnosis.active and world.results() == {"noted": "finding"}
    assert world.backend.steps.watcher is None and world.backend.operators.watcher is None
    told = len(Noted.made[0].told)
    world.iterate()
    assert len(Noted.made[0].told) == told


def test_so_many_iterations_with_what_follows_the_last(detectors: list[type[Detector]]) -> None:
    world = World()
    diagnosis = world.diagnose(iterations=2)
    world.session.add_backend(world.backend)
    world.iterate(5)
    assert Noted.made[0].told[-3:] == ["op2", "over2", "last2"], "the step behind the second belongs to it"
    assert "step2" in Noted.made[0].told and not diagnosis.active
    diagnosis.program_ends(RuntimeError("later"))
    assert len(world.sent) == 1, "its end is told once"


def test_one_that_fails_is_off_and_said_so_and_the_others_go_on(detectors: list[type[Detector]]) -> None:
    class Failing(Detector):
        kinds = ("failing",)

        def backward_end(self, running: Running, error: BaseException | None) -> None:
            raise ValueError("a defect")

    class Unborn(Detector):
        kinds = ("unborn",)

        def __init__(self, facts: Any) -> None:
            raise ValueError("not even made")

    detectors[:] = [Failing, Unborn, Noted]
    world = World()
    diagnosis = world.diagnose()
    world.session.add_backend(world.backend)
    world.iterate(2)
    diagnosis.program_ends(None)
    assert "end2" in Noted.made[0].told
    assert world.results() == {"failing": "could not look", "noted": "clear"}
    said = [line for line in world.outlet.said if "is off" in line]
    assert len(said) == 2 and "a defect" in "".join(said)


def test_what_a_detector_computes_is_not_told_to_any(detectors: list[type[Detector]]) -> None:
    class Computing(Noted):
        kinds = ("computing",)

        def optimizer(self, event: Any) -> None:
            super().optimizer(event)
            world.backend.operators.speak("norm")
            world.backend.backward(FakeGraph.chain(2))

    detectors[:] = [Computing]
    world = World()
    world.diagnose()
    world.session.add_backend(world.backend)
    world.iterate(2)
    told = [each for each in Noted.made[0].told if not each.startswith("node")]
    assert told == ["op0", "begin1", "end1", "step1", "op1", "over1", "begin2", "end2", "step2"]


def test_the_same_is_told_once_more_of_it_again_and_taken_back(detectors: list[type[Detector]]) -> None:
    world = World()
    diagnosis = world.diagnose()
    world.session.add_backend(world.backend)
    facts = Noted.made[0].facts
    cause = Cause("train.py", 3)
    id = facts.tell(finding(facts, "a", cause=cause))
    assert facts.tell(finding(facts, "in other words", cause=cause)) == id
    assert facts.tell(finding(facts, "a", cause=Cause("train.py", 4))) != id
    doubt = facts.tell(finding(facts, "perhaps", confidence=0.3))
    assert facts.findings[doubt].severity == "note"
    facts.take_back(doubt)
    assert [each.confidence for each in world.findings()] == [0.95, 0.95, 0.3, 0.0]
    assert len(diagnosis.findings()) == 2


def test_only_what_was_asked_for(detectors: list[type[Detector]]) -> None:
    class Both(Noted):
        kinds = ("one", "two")

        def end(self) -> None:
            for kind in self.kinds:
                self.facts.tell(finding(self.facts, "x", kind=kind))

    detectors[:] = [Both, Noted]
    world = World()
    diagnosis = world.diagnose(only=["two"])
    world.session.add_backend(world.backend)
    world.iterate()
    diagnosis.program_ends(None)
    assert [each.kind for each in world.findings()] == ["two"]
    assert world.results() == {"two": "finding"} and len(Noted.made) == 1


def test_errors_and_the_end(detectors: list[type[Detector]]) -> None:
    world = World()
    diagnosis = world.diagnose()
    world.session.add_backend(world.backend)

    def fail(*_: Any) -> Any:
        raise RuntimeError("node failed")

    graph = FakeGraph.chain(2)
    graph.nodes[2].fn = fail
    with pytest.raises(RuntimeError, match="node failed"):
        world.backend.backward(graph)
    assert "error1" in Noted.made[0].told
    diagnosis.program_ends(RuntimeError("node failed"))
    assert Noted.made[0].told[-3:] == ["uncaught node failed 1", "over1", "last1"]


@pytest.mark.parametrize("leave", [lambda w, d: w.session.detach(), lambda w, d: d.abandon()], ids=["detach", "fork"])
def test_a_client_that_leaves_and_a_fork_take_everything_out(
    detectors: list[type[Detector]], leave: Callable[[World, core.Diagnosis], None]
) -> None:
    world = World()
    diagnosis = world.diagnose()
    world.session.add_backend(world.backend)
    world.iterate()
    told = len(Noted.made[0].told)
    leave(world, diagnosis)
    world.iterate()
    assert world.backend.steps.watcher is None and len(Noted.made[0].told) == told and world.sent == []
    diagnosis.program_ends(None)
    assert not any(isinstance(each, Found) for each in world.sent)


def test_several_frameworks_are_one_diagnosis(detectors: list[type[Detector]]) -> None:
    class Applied(Noted):
        kinds = ("applied",)

        def applied(self) -> bool:
            return self.facts.iteration > 0

    class Other(TappedBackend):
        name = "other"

    detectors[:] = [Applied]
    world = World()
    diagnosis = world.diagnose()
    world.session.add_backend(world.backend)
    world.session.add_backend(Other())
    world.iterate(2)
    diagnosis.program_ends(None)
    assert world.results() == {"applied": "clear"}, "the one that nobody used has nothing to say"
