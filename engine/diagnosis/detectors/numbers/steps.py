"""Losses and steps so far, as plain numbers: since when, and did it grow."""

from __future__ import annotations

import collections
import itertools
import math
import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import OptimizerEvent
from adbg.engine.types import SourceLine

_KEPT = 64
_TIMES = 1e4  # that a loss has to grow by, before it overflows, to be called divergence


@dataclass(slots=True)
class Step:
    what: str
    iteration: int
    line: SourceLine | None
    made: SourceLine | None  # where the optimizer was constructed
    rates: tuple[float, ...]
    optimizer: weakref.ref[Any] | None = None


class Steps:
    """Filled in from events of optimizers and from the roots of backwards."""

    def __init__(self) -> None:
        self.last: Step | None = None
        self.inside = False  # a step runs
        self.bad: Any = None  # ``ledger.Made``: what the last step made that is not finite, of finite operands, first
        self.any = False  # an optimizer is in use, whether or not it stepped
        self._made: dict[int, SourceLine | None] = {}
        self._losses: collections.deque[float] = collections.deque(maxlen=_KEPT)

    def note(self, event: OptimizerEvent, iteration: int) -> None:
        if event.optimizer is None:
            return
        self.any = True
        self.inside = event.what == "step"
        if self.inside:
            self.bad = None
        if event.what == "made":
            self._made[id(event.optimizer)] = event.line
        elif event.what in ("step", "stepped"):
            kind = type(event.optimizer).__name__
            made = self._made.get(id(event.optimizer))
            self.last = Step(kind, iteration, event.line, made, tuple(event.rates), _reference(event.optimizer))

    def loss(self, size: float) -> None:
        if not self._losses or math.isfinite(self._losses[-1]):
            self._losses.append(size)

    def finite(self) -> list[float]:
        return [each for each in self._losses if math.isfinite(each)]

    def diverges(self) -> bool:
        """The last finite losses grow, in all by more than ``_TIMES``."""
        losses = self.finite()
        if len(losses) < 3:
            return False
        last = losses[-1]
        recent = losses[-6:]
        rises = sum(later > earlier for earlier, later in itertools.pairwise(recent))
        return last > _TIMES * max(min(losses), 1e-12) and last > 1e3 and rises >= len(recent) - 2

    def growth(self) -> str:
        losses = self.finite()
        low = losses.index(min(losses))
        return f"the loss grew from {losses[low]:.4g} to {losses[-1]:.4g} in {len(losses) - 1 - low} backwards"

    def losses_text(self) -> list[str]:
        if not self._losses:
            return []
        return [
            "size of the loss in the last backwards: " + ", ".join(f"{each:.4g}" for each in list(self._losses)[-8:])
        ]

    def text(self) -> list[str]:
        if self.last is None:
            return []
        rates = ", ".join(f"{each:.4g}" for each in self.last.rates)
        return [
            f"{self.last.what} stepped last in iteration {self.last.iteration}"
            + (f" with learning rate {rates}" if rates else "")
        ]


def _reference(optimizer: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(optimizer)
    except TypeError:  # a class of the program's, with slots
        return None
