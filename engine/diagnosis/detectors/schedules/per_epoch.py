"""Schedules that count optimizer steps, and are stepped once for many of them."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.schedules.factors import Factor, factor_of
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_GAP = 5  # steps of the optimizer between two of the scheduler: fewer may be accumulation, or phases of one loop
_TIMES = 4  # a warm-up that takes so many times the steps of the run's is made for others
_LOW = 0.25  # of the peak: a schedule that came further may do what it is meant to
_COUNTERS = frozenset({"last_epoch", "_step_count"})


@dataclass(slots=True, eq=False)
class _Course:
    """Of a scheduler: ``at`` is how many steps the optimizer had done at each of its own, ``peak`` the rate that it
    goes up to, 0 where that is not known, ``numbers`` what it, or its function, was given."""

    kind: str
    made: SourceLine | None
    factor: Factor | None
    numbers: frozenset[int]
    peak: float
    line: SourceLine | None = None
    optimizer: int = 0
    at: list[int] = field(default_factory=list)


@detector("zero-learning-rate")
class StepsForEpochs(LoopDetector):
    """A warm-up that counts optimizer steps, and is stepped once per epoch: the first epoch runs with a rate of 0, and
    the whole run with a small part of the rate that was meant.

    Evidence: how many steps of the optimizer lie between two of the scheduler, the rates at them, and after how many of
    the scheduler's the warm-up would be over: about as many as the optimizer did, or as the scheduler was told.
    Mistaken for: schedules per epoch (their warm-up is over within the run, or nearly so: not told), one single step
    with a rate of 0 (not told), a run that is cut short (not told), an optimizer that waits for others (not told). A
    warm-up per epoch that begins at 0 is a warning: its first epoch is lost.
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._courses: dict[int, _Course] = {}  # id of a scheduler

    def applied(self) -> bool:
        return bool(self._courses)

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        scheduler = event.scheduler
        if scheduler is None:
            return
        if event.what == "scheduler":
            numbers = frozenset(_numbers(scheduler))
            self._courses[id(scheduler)] = _Course(
                type(scheduler).__name__, event.line, factor_of(scheduler), numbers, _peak(scheduler, event.optimizer)
            )
        course = self._courses.get(id(scheduler))
        if course is None:
            return
        if event.optimizer is not None:
            course.optimizer = id(event.optimizer)
        owner = self.ledger.optimizers.get(course.optimizer)
        if event.what == "scheduled" and owner is not None and len(course.at) < 10_000:
            course.line = event.line
            course.at.append(len(owner.rates))

    def end(self) -> None:
        if self.facts.cut_short:
            return
        for course in self._courses.values():
            owner = self.ledger.optimizers.get(course.optimizer)
            if owner is not None and course.at:
                self._judge(course, owner)

    def _others_train(self, optimizer: Optimizer) -> bool:
        others = (each for each in self.ledger.optimizers.values() if each is not optimizer)
        return any(high for each in others for _, high in each.rates)

    def _judge(self, course: _Course, owner: Optimizer) -> None:
        rates, steps = [high for _, high in owner.rates], len(owner.rates)
        marks = [0, *(at for at in course.at if at)]
        gaps = [second - first for first, second in itertools.pairwise(marks)]
        seen = [rates[at] for at in dict.fromkeys(marks) if at < steps]  # at the first step after each
        if not gaps or min(gaps) < _GAP or len(seen) < 2 or not max(rates):
            return
        peak = course.peak or (owner.first_rate or 0.0)
        need = _steps_to(peak, seen, course, steps, max(gaps)) if len(seen) >= 3 else 0
        if need and max(rates) <= _LOW * peak:
            self._tell_slow(course, owner, seen, gaps, peak, need)
        elif not any(rates[: gaps[0]]) and not self._others_train(owner):
            self._tell_first(course, owner, seen, gaps[0])

    def _tell_slow(
        self, course: _Course, owner: Optimizer, seen: list[float], gaps: list[int], peak: float, need: int
    ) -> None:
        start = f"the first {gaps[0]} steps have a rate of 0, and " if not seen[0] else ""
        self._tell(
            "error", 0.88,
            f"{course.kind} counts optimizer steps, and steps once for {_range(gaps)} of them: {start}the rate of "
            f"{owner.kind} comes to {max(seen):.3g} of {peak:.3g}; step it after each step of the optimizer",
            course.line, [
                *self._counted(course, owner, seen),
                f"it comes to {peak:.3g} with its step {need}: {owner.kind} did {len(owner.rates)}",
            ], owner,
        )  # fmt: skip

    def _tell_first(self, course: _Course, owner: Optimizer, seen: list[float], lost: int) -> None:
        gave = course.factor.gave_zero() if course.factor is not None else None
        line = gave[0] if gave is not None else course.made
        self._tell(
            "warning", 0.75,
            f"the first {lost} steps of {owner.kind} have a learning rate of 0 and train nothing: {course.kind} begins "
            "at 0, and steps only after them",
            line or course.line, [
                *self._counted(course, owner, seen), *([f"{gave[1]}: {self.facts.text_of(gave[0])}"] if gave else []),
            ], owner,
        )  # fmt: skip

    @staticmethod
    def _counted(course: _Course, owner: Optimizer, seen: list[float]) -> Iterator[str]:
        yield f"{course.kind} stepped {len(course.at)} times in {place(course.line)}, {owner.kind} {len(owner.rates)}"
        shown = ", ".join(f"{rate:.3g}" for rate in seen[:6])
        yield f"the rate at the start, and after steps of the scheduler: {shown}{', …' * (len(seen) > 6)}"

    def _tell(
        self, severity: str, sure: float, text: str, line: SourceLine | None, evidence: list[str], owner: Optimizer
    ) -> None:
        self.facts.tell(
            Finding(
                0, "zero-learning-rate", severity, sure, text, cause=self.facts.cause(line), evidence=evidence,
                next=rate_commands(self, owner),
            )
        )  # fmt: skip


def _steps_to(peak: float, seen: Sequence[float], course: _Course, steps: int, gap: int) -> int:
    """After how many of its steps the schedule comes to its peak, where that is no number of epochs: it rises by the
    same each time, so that the optimizer's steps would have brought it there; or it was told of just as many as the
    optimizer did. Else 0."""
    rises = [second - first for first, second in itertools.pairwise(seen)]
    if peak <= max(seen) or min(rises) <= 0:
        return 0
    mean = (seen[-1] - seen[0]) / len(rises)
    even = max(rises) - min(rises) <= 0.02 * mean
    need = round((peak - seen[0]) / mean)
    if even and _TIMES * (len(course.at) + 1) <= need <= 1.2 * steps:
        return need
    told = [each for each in course.numbers if abs(each - steps) <= gap and each >= _TIMES * len(course.at)]
    return min(told, default=0)


def _peak(scheduler: Any, optimizer: Any) -> float:
    """The rate that it goes up to, of what it or its optimizer keeps; 0 where nothing says so."""
    found: list[float] = []
    with suppress(Exception):
        for group in getattr(optimizer, "param_groups", ()):
            found.append(float(group.get("max_lr", group.get("initial_lr", 0.0))))
        own = vars(scheduler)
        for name in () if found else ("end_lr", "max_lr", "base_lr"):
            if type(own.get(name)) is float and not found:
                found.append(own[name])
        found += [each for each in own.get("_lr_config", ()) if type(each) is float]
    return max(found, default=0.0)


def _numbers(scheduler: Any) -> Iterator[int]:
    """Whole numbers that it was given, or that its functions hold. None of them is called."""
    with suppress(Exception):
        todo = [(name, value) for name, value in vars(scheduler).items() if name not in _COUNTERS]
        for _, value in [*todo, *(("", each) for _, inner in todo if type(inner) in (list, tuple) for each in inner)]:
            if type(value) is int:
                yield value
            elif callable(value):
                yield from _held_by(value)


def _held_by(function: Any) -> Iterator[int]:
    found: list[Any] = []
    while isinstance(function, functools.partial):
        found += [*function.args, *function.keywords.values()]
        function = function.func
    if isinstance(function, types.MethodType):
        found += list(getattr(function.__self__, "__dict__", {}).values())
    elif isinstance(function, types.FunctionType):
        found += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        found += [cell.cell_contents for cell in function.__closure__ or ()]
    else:
        found += list(getattr(function, "__dict__", {}).values())
    yield from (each for each in found if type(each) is int)


def _range(gaps: Sequence[int]) -> str:
    return str(gaps[0]) if min(gaps) == max(gaps) else f"{min(gaps)} to {max(gaps)}"
