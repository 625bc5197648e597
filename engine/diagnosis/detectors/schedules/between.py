"""Steps of optimizers that come between the forward that used a parameter and its backward. Asked by ``in_place``."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OptimizerEvent
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.earlier.together import Place, apart, calls_now
from adbg.engine.types import SourceLine

_MOST = 16  # optimizers


@dataclass(frozen=True, slots=True)
class Step:
    line: SourceLine | None  # of the step itself
    calls: tuple[Place, ...]  # the functions that ran, innermost first
    tensors: tuple[Any, ...]  # weak references of what it holds

    def apart_from(self, now: Collection[Place]) -> SourceLine | None:
        """The line that came to the step, in the function that comes to the backward by another one."""
        return apart(self.calls, tuple(now)) or self.line


@detector("in-place")
class StepsBetween(Detector):
    """The steps of each optimizer, for who finds that a parameter was changed before its backward: the line in the
    function that runs both (``self.apply(critic_optimizer, loss)``), not the one of ``optimizer.step()`` in a helper.

    Evidence: see ``in-place``.
    Mistaken for: it tells nothing by itself.
    Cost: a look at the functions that run, at each step (5 us).
    """

    needs = Need.STEPS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._last: dict[int, Step] = {}  # by optimizer
        facts.shared[StepsBetween] = self

    def optimizer(self, event: OptimizerEvent) -> None:
        key = id(event.optimizer)
        if event.what != "stepped" or (key not in self._last and len(self._last) >= _MOST):
            return
        known = self._last.get(key)
        same = known is not None and len(known.tensors) == len(event.tensors) and (
            not event.tensors or known.tensors[0]() is event.tensors[0]  # not another one at its address
        )  # fmt: skip
        refs = known.tensors if known is not None and same else tuple(map(weakref.ref, event.tensors))
        self._last[key] = Step(event.line, calls_now(), refs)

    def of(self, where: Collection[int]) -> tuple[Step, Any] | None:
        """The last step of the only optimizer that holds something there, and what it holds."""
        storages = self.facts.backend.storages
        found = [
            (step, value) for step in self._last.values() for ref in step.tensors
            if (value := ref()) is not None and any(address in where for address, _ in storages(value))
        ]  # fmt: skip
        return found[0] if len({id(step) for step, _ in found}) == 1 else None
