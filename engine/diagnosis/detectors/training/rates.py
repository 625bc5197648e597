"""Learning rates, their schedulers, and the clipping of gradients."""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts


@detector("zero-learning-rate")
class ZeroRate(LoopDetector):
    """An optimizer whose learning rate is 0 at every step, or has become so small that the rest of the run is lost.

    Evidence: the rates at its steps, and where they come from: the optimizer's line or its scheduler's.
    Mistaken for: a warm-up that begins at 0 (not told: it is not 0 at every step), a schedule that ends at 0 (a note,
    where many steps follow).
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._schedulers: dict[int, SourceLine | None] = {}  # id of an optimizer (0: not known) -> line
        self._scheduled = collections.Counter[int]()

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        key = optimizer.key if optimizer is not None else 0
        if event.what == "scheduler":
            self._schedulers[key] = event.line
        elif event.what == "scheduled":
            self._scheduled[key] += 1

    def end(self) -> None:
        for optimizer in self.ledger.optimizers.values():
            rates = [high for _, high in optimizer.rates]
            if len(rates) >= 3 and not any(rates):
                self._tell_zero(optimizer, len(rates))
            elif len(rates) >= 20 and rates[0] > 0:
                self._faded(optimizer, rates)

    def _tell_zero(self, optimizer: Optimizer, steps: int) -> None:
        scheduler = self._schedulers.get(optimizer.key, self._schedulers.get(0))
        by_scheduler = scheduler is not None and (optimizer.first_rate != 0 or self._scheduled.total() > 0)
        line = scheduler if by_scheduler else optimizer.made
        source = "its scheduler sets it to 0" if by_scheduler else "it was made with 0"
        evidence = [f"the rate was 0 at all {steps} steps; {optimizer.first_rate} as the optimizer was made"]
        if by_scheduler:
            evidence.append(f"the scheduler was made in {place(scheduler)} and stepped {self._scheduled.total()} times")
        self.facts.tell(
            Finding(
                0, "zero-learning-rate", "error", 0.92,
                f"the learning rate of {optimizer.kind} is 0 at every step ({source}): nothing is trained",
                cause=self.facts.cause(line), evidence=evidence,
            )
        )  # fmt: skip

    def _faded(self, optimizer: Optimizer, rates: list[float]) -> None:
        top = max(rates)
        lost = sum(1 for rate in rates if rate < top * 1e-5 and rate != rates[0])
        if lost >= max(10, len(rates) // 4) and rates[-1] < top * 1e-5:
            line = self._schedulers.get(optimizer.key, self._schedulers.get(0)) or optimizer.made
            self.facts.tell(
                Finding(
                    0, "zero-learning-rate", "note", 0.45,
                    f"the learning rate of {optimizer.kind} falls below a 100,000th of its highest for {lost} of "
                    f"{len(rates)} steps: a scheduler meant for epochs may be stepped per batch",
                    cause=self.facts.cause(line), evidence=[f"rates: first {rates[0]:.3g}, last {rates[-1]:.3g}"],
                )
            )  # fmt: skip


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
            evidence.append(f"the optimizer steps behind it, in {place(step)}")
        self.facts.tell(
            Finding(
                0, "schedule-order", "warning", confidence,
                f"the learning-rate scheduler steps before the optimizer ({where}): the first rate is never used",
                cause=self.facts.cause(line), evidence=evidence,
            )
        )  # fmt: skip


@detector("clipping-order")
class Clipping(LoopDetector):
    """Gradients that are clipped where it has no effect: before backward has made them, after the step has used them,
    or of nothing at all; and, as a note, clipping that acts at every step.

    Evidence: the order of backward, clipping and step in several iterations; the norms that were clipped.
    Mistaken for: a norm that is only measured (an infinite limit: not told).
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._since: list[str] = []  # what happened since the last backward
        self._useful = False  # a clip came between backward and step
        self._late = 0
        self._line: SourceLine | None = None
        self._step: SourceLine | None = None
        self._before = False  # the clip came before anything was stepped since it ran
        self._acts: list[bool] = []
        self._norms: list[float] = []
        self._empty = 0
        self._fresh = False

    def begins(self, running: Running) -> None:
        self._fresh = True  # gradients that no step has used

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "stepped":
            self._fresh = False
            self._step = event.line
        elif event.what == "clipped" and event.limit is not None and math.isfinite(event.limit):
            if self._fresh:
                self._useful = True
            else:
                self._late += 1
            if self._line is None or not self._fresh:
                self._line = event.line
            if event.norm is not None and self._fresh:
                self._acts.append(event.norm > event.limit)
                self._norms.append(event.norm)
                self._empty += event.norm == 0 and self._gave()

    def _gave(self) -> bool:
        return any(held.ended for each in self.ledger.optimizers.values() for held in each.held)

    def end(self) -> None:
        stepped = sum(each.steps for each in self.ledger.optimizers.values())
        if self._late >= 2 and not self._useful and stepped:
            backward = self.ledger.backward_line
            text = "gradients are clipped outside of backward and step: each step uses them unclipped"
            evidence = [
                f"clipping in {place(self._line)} ran {self._late} times, each time with no backward between the last "
                "step and it",
                f"backward is called in {place(backward)}, the step in {place(self._step)}",
            ]
            self._tell("error", 0.92, text, evidence)
        elif self._empty >= 2 and self._empty == len(self._norms):
            text = "clipping is given no gradients (an iterator that was used up before?): it does nothing"
            self._tell("error", 0.9, text, [f"norm 0 at all {self._empty} calls, while gradients are not zero"])
        elif len(self._acts) >= 10 and all(self._acts):
            shown = ", ".join(f"{norm:.3g}" for norm in self._norms[-5:])
            text = f"clipping acts at every one of {len(self._acts)} steps: it sets the size of the steps, not a limit"
            self._tell("note", 0.3, text, [f"norms before it: {shown}"])

    def _tell(self, severity: str, confidence: float, text: str, evidence: list[Any]) -> None:
        self.facts.tell(
            Finding(
                0, "clipping-order", severity, confidence, text, cause=self.facts.cause(self._line), evidence=evidence
            )
        )
