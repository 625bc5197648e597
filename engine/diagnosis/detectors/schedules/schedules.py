"""Learning-rate schedulers: when they step, and whether anything follows them."""

from __future__ import annotations

import collections
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands
from adbg.engine.diagnosis.detectors.training.source import named, place, uncalled
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.diagnosis.source import RATE, argument_line, assigned_on
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_FEW = 10  # steps of an optimizer: a run that short may end within its first epoch


@detector("schedule-order")
class ScheduleOrder(LoopDetector):
    """A learning-rate scheduler that steps before its optimizer: the first rate of the schedule is never used.

    Evidence: the order of backward, scheduler and optimizer in several iterations.
    Mistaken for: a schedule that is wound forward on resume (another line: not told), a step that a gradient scaler
    left out (no step follows before the next backward: not told).
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._early: dict[int, SourceLine | None] = {}  # scheduler -> its line, before any backward
        self._pending: dict[int, SourceLine | None] = {}  # scheduler -> its line, since the last backward
        self._between = collections.Counter[int]()
        self._count = collections.Counter[int]()
        self._stepped = False  # some optimizer did
        self._since = False  # an optimizer stepped since the last backward
        self._told: set[int] = set()

    def begins(self, running: Running) -> None:
        self._pending.clear()
        self._since = False

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "step":
            if not self._since:
                for key, line in self._pending.items():
                    self._between[key] += 1
                    if self._between[key] == 2:
                        self._tell(key, line, "between backward and the optimizer's step", 0.85, event.line)
            self._pending.clear()
            self._stepped = self._since = True
        elif event.what == "stepped":  # step(closure): backward ran within it
            self._pending.clear()
            self._since = True
        elif event.what == "scheduled":
            self._scheduled(event)

    def _scheduled(self, event: OptimizerEvent) -> None:
        key = id(event.scheduler)
        self._count[key] += 1
        if self.ledger.backwards and not self._since:
            self._pending[key] = event.line
        if not self.ledger.backwards and not self._stepped:
            if key in self._early:
                self._early[key] = None  # wound forward
            else:
                self._early[key] = event.line
        elif self._stepped and self._count[key] == 2 and self._early.get(key) == event.line is not None:
            self._tell(key, event.line, "at the head of the loop, before the first step", 0.75, None)

    def _tell(self, key: int, line: SourceLine | None, where: str, confidence: float, step: SourceLine | None) -> None:
        if key in self._told:
            return
        self._told.add(key)
        evidence = [f"scheduler.step() in {place(line)} ran {self._count[key]} times, {where}"]
        if step is not None:
            evidence.append(f"the optimizer steps after it, in {place(step)}")
        self.facts.tell(
            Finding(
                0, "schedule-order", "warning", confidence,
                f"the learning-rate scheduler steps before the optimizer ({where}): the first rate is never used",
                cause=self.facts.cause(line), evidence=evidence, next=rate_commands(self, None),
            )
        )  # fmt: skip


@dataclass(slots=True, eq=False)
class _Scheduler:
    """``optimizer``: the id of the one that it drives, 0 where that is not known."""

    ref: weakref.ref[Any]
    kind: str
    made: SourceLine | None
    optimizer: int
    steps: int = 0


@detector("schedule-unused")
class ScheduleUnused(LoopDetector):
    """A learning-rate scheduler without effect: it never steps, or what it drives is another optimizer than the one
    that steps (replaced after the scheduler was made, or never given the scheduler).

    Evidence: how often the scheduler and the optimizers stepped, and the rates at these steps.
    Mistaken for: a run that ends within its first epoch (fewer than 10 steps, an exception: not told; where the source
    steps it somewhere it is a note), schedulers that another one steps or has (not told).
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._known: dict[int, _Scheduler] = {}
        self._followed: set[int] = set()  # ids of schedulers that stepping optimizers read their rate from
        self._inner: set[int] = set()  # of those that another one has
        self._failed = False

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        scheduler = event.scheduler
        if scheduler is None:
            return
        key = id(scheduler)
        if event.what == "scheduler":
            owner = id(event.optimizer) if event.optimizer is not None else 0
            self._known[key] = _Scheduler(weakref.ref(scheduler), type(scheduler).__name__, event.line, owner)
            self._inner |= set(map(id, _parts(scheduler)))
        elif event.what == "scheduled" and key in self._known:
            self._known[key].steps += 1
        elif event.what == "step":
            if key not in self._followed:
                self._followed |= {key, *map(id, _parts(scheduler))}
            if key in self._known and event.optimizer is not None:
                self._known[key].optimizer = id(event.optimizer)

    def applied(self) -> bool:
        return bool(self._known)

    def uncaught(self, error: BaseException) -> None:
        self._failed = True

    def end(self) -> None:
        stepping = [each for each in self.ledger.optimizers.values() if each.steps >= 2]
        if not stepping or self._failed:
            return
        for key, known in self._known.items():
            own = self.ledger.optimizers.get(known.optimizer)
            alone = key not in self._followed and key not in self._inner
            if known.steps >= 2 and alone and (own is None or not own.steps):
                self._tell_other(known, max(stepping, key=lambda each: each.steps))
        driven = {known.optimizer for known in self._known.values() if known.steps}
        for known in reversed(list(self._known.values())):
            own = self.ledger.optimizers.get(known.optimizer)
            if own is not None and own.steps >= _FEW and known.optimizer not in driven:
                driven.add(known.optimizer)
                self._tell_idle(known, own)

    def _tell_other(self, known: _Scheduler, other: Optimizer) -> None:
        own = self.ledger.optimizers.get(known.optimizer)
        what = f"a {own.kind} that never steps" if own is not None else "no optimizer"
        rates = sorted({high for _, high in other.rates})
        evidence = [
            f"{known.kind}, made in {place(known.made)}, stepped {known.steps} times",
            f"{other.kind}, made in {place(other.made)}, stepped {other.steps} times with the rate"
            f"{'s' * (len(rates) > 1)} {', '.join(f'{rate:.3g}' for rate in rates[:4])}",
        ]
        line = known.made
        if own is None and other.made is not None:  # it was given a number, where the scheduler itself belongs
            line = argument_line(other.made, other.kind, RATE)
            evidence.append(f"{other.kind} was made with the number {other.first_rate}: give it the scheduler itself")
        self.facts.tell(
            Finding(
                0, "schedule-unused", "error", 0.9,
                f"{known.kind} drives {what}: the rate of {other.kind}, which steps, does not follow it",
                cause=self.facts.cause(line), evidence=evidence, next=rate_commands(self, other),
            )
        )  # fmt: skip

    def _tell_idle(self, known: _Scheduler, own: Optimizer) -> None:
        line, why, sure = known.made, "step() of it is never called", 0.8
        forgotten = None
        if known.made is not None:
            names = [name.rpartition(".")[2] for name in assigned_on(known.made.file, known.made.line)]
            forgotten = uncalled(known.made.file, "step", names)
            if forgotten is not None:
                line, why, sure = forgotten, "its step is named but not called (the parentheses are missing)", 0.9
            elif not names or any(named(known.made.file, rf"\b{name}\.step\b|\b{name}\s*[,)]") for name in names):
                why, sure = "it did not step so far; a longer run would tell whether it does", 0.4
        self.facts.tell(
            Finding(
                0, "schedule-unused", "warning", sure,
                f"{known.kind} has no effect on {own.kind}: {why}",
                cause=self.facts.cause(line),
                evidence=[f"{own.kind} stepped {own.steps} times, {known.kind} never"],
                next=rate_commands(self, own),
            )
        )  # fmt: skip


def _parts(scheduler: Any) -> list[Any]:
    """What a scheduler may step in its turn: one that it was given."""
    return [value for value in vars(scheduler).values() if hasattr(value, "step")]
