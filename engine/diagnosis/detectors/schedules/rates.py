"""Learning rates that train nothing."""

from __future__ import annotations

import collections
import weakref
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.schedules.factors import Factor, factor_of
from adbg.engine.diagnosis.detectors.schedules.stepping import would_step
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands
from adbg.engine.diagnosis.detectors.training.source import dividing, place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.diagnosis.source import RATE, argument_line
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_NOTHING = 1e-9  # of the highest rate: f32 has 7 digits
_LOOK = 3  # steps with a rate of 0, until it is looked for what would step the scheduler


@detector("zero-learning-rate")
class ZeroRate(LoopDetector):
    """An optimizer whose learning rate is 0 at every step, or has become so small that the rest of the run is lost.

    Evidence: the rates at its steps, and where they come from: the optimizer's line or its scheduler's. Where the
    scheduler is never stepped, the optimizer's step, and the code that would step it.
    Mistaken for: a warm-up that begins at 0 (not told: it is not 0 at every step), a schedule that ends at 0 (a note,
    where many steps follow), a part that waits while another optimizer trains the rest (a note, where it was made so).
    Cost: none; a look through the program's objects (60 ms) where the rate was 0 at three steps and nothing stepped it.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._factors: dict[int, Factor | None] = {}  # id of an optimizer (0: not known) -> of its scheduler
        self._schedulers: dict[int, SourceLine | None] = {}  # id of an optimizer (0: not known) -> line
        self._scheduled = collections.Counter[int]()
        self._stepped_at: dict[int, SourceLine | None] = {}
        self._refs: dict[int, weakref.ref[Any]] = {}  # the schedulers themselves, by the same
        self._would: dict[int, list[tuple[str, SourceLine]]] = {}  # id of an optimizer -> code that was never called
        self._follows: set[int] = set()  # ids of optimizers that step with the rate of a scheduler

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "scheduler":
            self._factors[optimizer.key if optimizer is not None else 0] = factor_of(event.scheduler)
        key = optimizer.key if optimizer is not None else 0
        if event.what == "scheduler":
            self._schedulers[key] = event.line
            self._refs[key] = weakref.ref(event.scheduler)
        elif event.what == "scheduled":
            self._scheduled[key] += 1
            self._stepped_at[key] = event.line
        elif event.what == "step" and event.scheduler is not None:
            self._follows.add(key)
        elif event.what == "stepped" and optimizer is not None and optimizer.steps == _LOOK:
            self._look(optimizer, event.scheduler)

    def _look(self, optimizer: Optimizer, scheduler: Any) -> None:
        """Whether something holds its scheduler that would step it: at the end it may be gone."""
        ref = self._refs.get(optimizer.key, self._refs.get(0))
        if scheduler is None and ref is not None:
            scheduler = ref()
        if scheduler is not None and not self._steps_of(optimizer) and not any(high for _, high in optimizer.rates):
            self._would[optimizer.key] = would_step(scheduler)

    def _steps_of(self, optimizer: Optimizer) -> int:
        """Of its schedulers; Paddle's know no optimizer."""
        return self._scheduled[optimizer.key] + self._scheduled[0]

    def end(self) -> None:
        for optimizer in self.ledger.optimizers.values():
            rates = [high for _, high in optimizer.rates]
            if len(rates) >= 3 and not any(rates):
                self._tell_zero(optimizer, len(rates))
            elif len(rates) >= 20 and rates[0] > 0:
                self._faded(optimizer, rates)

    def _tell_zero(self, optimizer: Optimizer, steps: int) -> None:
        scheduler = self._schedulers.get(optimizer.key)
        if scheduler is None and optimizer.key in self._follows:
            scheduler = self._schedulers.get(0)
        stepped = self._steps_of(optimizer)
        by_scheduler = scheduler is not None and (optimizer.first_rate != 0 or stepped > 0)
        line = scheduler if by_scheduler else argument_line(optimizer.made, optimizer.kind, RATE)
        source = "its scheduler sets it to 0" if by_scheduler else "it was made with 0"
        evidence = [f"the rate was 0 at all {steps} steps; {optimizer.first_rate} as the optimizer was made"]
        if scheduler is None and 0 in self._schedulers:
            evidence.append("no scheduler drives it: it was made with a number, not with the scheduler itself")
        # Where the rate of an optimizer is a scheduler, which is made before it.
        ahead = optimizer.key not in self._schedulers and optimizer.first_rate == 0
        never = scheduler is not None and (ahead or by_scheduler) and not stepped
        if never:
            line = optimizer.step_line or scheduler
            source = "its scheduler begins at 0, and is never stepped: its step() is missing after the optimizer's"
            evidence.append(f"the scheduler was made in {place(scheduler)}; its step() was never called")
            evidence += [
                f"{kind}, which holds it, would step it in {at.function}, which never came to that: {place(at)}"
                for kind, at in self._would.get(optimizer.key, ())
            ]
        elif by_scheduler:
            evidence.append(f"the scheduler was made in {place(scheduler)} and stepped {stepped} times")
            divides = dividing(scheduler)
            if divides is not None:
                line = divides
                evidence.append(f"its function divides integers, in {place(line)}: {self.facts.text_of(line)}")
            factor = self._factors.get(optimizer.key, self._factors.get(0)) if divides is None else None
            gave = factor.gave_zero() if factor is not None else None
            if gave is not None:
                line = gave[0]
                evidence.append(f"{gave[1]}: {self.facts.text_of(line)}")
        severity, confidence, lost = "error", 0.92, "nothing is trained"
        if self._others_train(optimizer):
            lost = "what it holds is not trained"
            if scheduler is None or not (never or by_scheduler):
                severity, confidence = "note", 0.45
                evidence.append("another optimizer trains: right if this part is to wait")
        self.facts.tell(
            Finding(
                0, "zero-learning-rate", severity, confidence,
                f"the learning rate of {optimizer.kind} is 0 at every step ({source}): {lost}",
                cause=self.facts.cause(line), evidence=evidence, next=rate_commands(self, optimizer),
            )
        )  # fmt: skip

    def _others_train(self, optimizer: Optimizer) -> bool:
        others = (each for each in self.ledger.optimizers.values() if each is not optimizer)
        return any(high for each in others for _, high in each.rates)

    def _faded(self, optimizer: Optimizer, rates: list[float]) -> None:
        top = max(rates)
        lost = sum(1 for rate in rates if rate < top * 1e-5 and rate != rates[0])
        if lost >= max(10, len(rates) // 4) and rates[-1] < top * 1e-5:
            made = self._schedulers.get(optimizer.key, self._schedulers.get(0)) or optimizer.made
            stepped, line = self._steps_of(optimizer), made
            if 2 * stepped >= len(rates):  # once a batch, or nearly so
                line = self._stepped_at.get(optimizer.key) or self._stepped_at.get(0) or made
            none = rates[-1] < top * _NOTHING  # no schedule ends there on purpose
            self.facts.tell(
                Finding(
                    0, "zero-learning-rate", "warning" if none else "note", 0.85 if none else 0.45,
                    f"the learning rate of {optimizer.kind} falls below a 100,000th of its highest for {lost} of "
                    f"{len(rates)} steps: a scheduler meant for epochs may be stepped per batch",
                    cause=self.facts.cause(line),
                    evidence=[
                        f"rates: first {rates[0]:.3g}, last {rates[-1]:.3g}",
                        f"its scheduler, made in {place(made)}, was stepped {stepped} times in {len(rates)} steps",
                    ],
                    next=rate_commands(self, optimizer),
                )
            )  # fmt: skip
