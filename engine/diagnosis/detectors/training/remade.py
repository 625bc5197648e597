"""Optimizers that are made again and again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.bits import hashes_of
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_ROW = 3  # times in a row that the one before had stepped once


@dataclass(slots=True)
class _Line:
    """Optimizers made in one line: of which tensors the last was, and how often it stepped."""

    held: frozenset[int]
    steps: int = 0
    row: int = 0
    made: int = 1
    begun: dict[int, int] = field(default_factory=dict)  # hashes of the weights as the last step began


@detector("optimizer-remade")
class Remade(LoopDetector):
    """An optimizer with a state (momentum, the moments of Adam) that is made anew before each step, so that its state
    begins at nothing each time.

    Evidence: how many were made in that line for the same tensors, and that each stepped once.
    Mistaken for: optimizers without a state (plain SGD: not told), one per task or phase, which steps more than once,
    or runs its closure more than once in its step (LBFGS; not told). Weights that are loaded or set back before each
    step, for the adaptation to a sample or the round of a client: a state would be that of others (not told).
    Cost: none; a hash of up to eight tensors at the steps of those that are made more than once.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._lines: dict[SourceLine, _Line] = {}
        self._told: set[SourceLine] = set()
        self._within = 0  # backwards since a step began

    def begins(self, running: Running) -> None:
        self._within += 1

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "loaded":
            ids = set(map(id, event.tensors))
            for each in self._lines.values():
                each.row = -1 if each.held & ids else each.row
        if optimizer is None or optimizer.made is None:
            return
        known = self._lines.get(optimizer.made)
        if event.what == "step":
            self._within = 0
            if known is not None and known.made > 1 and known.row < _ROW:
                before, known.begun = known.begun, hashes_of(self.facts, event.tensors)
                known.row = -1 if before and before == known.begun else known.row
        elif event.what == "stepped" and known is not None:
            known.steps += max(1, self._within)  # one step(closure) of LBFGS is up to 20 iterations with its state
        elif event.what == "made" and _has_state(event.optimizer):
            held = frozenset(map(id, event.tensors))
            if known is None or known.held != held:
                self._lines[optimizer.made] = _Line(held)
                return
            known.row = known.row + 1 if known.steps == 1 else 0
            known.steps, known.made = 0, known.made + 1
            if known.row == _ROW and optimizer.made not in self._told:
                self._told.add(optimizer.made)
                self._tell(optimizer, known)

    def _tell(self, optimizer: Optimizer, known: _Line) -> None:
        self.facts.tell(
            Finding(
                0, "optimizer-remade", "warning", 0.85,
                f"{optimizer.kind} is made anew before each step: its momentum or moments begin at 0 each time",
                cause=self.facts.cause(optimizer.made),
                evidence=[
                    f"{known.made} optimizers were made in {place(optimizer.made)} for the same "
                    f"{len(known.held)} tensors, and each stepped once",
                ],
                next=["b backward-end"],
            )
        )  # fmt: skip


def _has_state(optimizer: Any) -> bool:
    if type(optimizer).__name__ != "SGD":
        return True
    defaults = getattr(optimizer, "defaults", None)
    return bool(defaults.get("momentum")) if isinstance(defaults, dict) else False
