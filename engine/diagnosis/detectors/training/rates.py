"""Learning rates that train nothing."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.factors import Factor, factor_of
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands
from adbg.engine.diagnosis.detectors.training.source import dividing, place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.protocol.messages import Finding
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
        self._factors: dict[int, Factor | None] = {}  # id of an optimizer (0: not known) -> of its scheduler
        self._schedulers: dict[int, SourceLine | None] = {}  # id of an optimizer (0: not known) -> line
        self._scheduled = collections.Counter[int]()

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "scheduler":
            self._factors[optimizer.key if optimizer is not None else 0] = factor_of(event.scheduler)
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
        # Where the rate of an optimizer is a scheduler, which is made before it.
        ahead = optimizer.key not in self._schedulers and optimizer.first_rate == 0
        never = scheduler is not None and ahead and not by_scheduler and not self._scheduled.total()
        if never:
            line, source = scheduler, "its scheduler begins at 0, and is never stepped"
            evidence.append(f"the scheduler was made in {place(scheduler)}; its step() was never called")
        if by_scheduler:
            evidence.append(f"the scheduler was made in {place(scheduler)} and stepped {self._scheduled.total()} times")
            divides = dividing(scheduler)
            if divides is not None:
                line = divides
                evidence.append(f"its function divides integers, in {place(line)}: {self.facts.text_of(line)}")
            factor = self._factors.get(optimizer.key, self._factors.get(0)) if divides is None else None
            gave = factor.gave_zero() if factor is not None else None
            if gave is not None:
                line = gave[0]
                evidence.append(f"{gave[1]}: {self.facts.text_of(line)}")
        self.facts.tell(
            Finding(
                0, "zero-learning-rate", "error", 0.92,
                f"the learning rate of {optimizer.kind} is 0 at every step ({source}): nothing is trained",
                cause=self.facts.cause(line), evidence=evidence, next=rate_commands(self, optimizer),
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
                    next=rate_commands(self, optimizer),
                )
            )  # fmt: skip
