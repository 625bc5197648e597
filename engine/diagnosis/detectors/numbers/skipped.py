"""Overflows of float16 whose steps a loss scaler skips: it begins with a scale that is too large, and comes down."""

from __future__ import annotations

from dataclasses import replace

from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_TOLD = 8  # steps in a row that were skipped, and it is told
_HOPELESS = 32  # and no scale will help: each of them halved it


class Skipped:
    """``finding`` is of the last overflow; ``scaled``: the scale alone makes it, and a smaller one does not."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.row = 0  # skipped since the last step
        self._told = 0
        self._finding: Finding | None = None

    def stepped(self) -> None:
        """An iteration without an overflow. What was told of the scale is no more so."""
        self.row, self._finding = 0, None
        if self._told:
            self._facts.take_back(self._told)
            self._told = 0

    def skip(self, finding: Finding, scaled: bool) -> Finding | None:
        """One more step was skipped. What is certainly wrong then, under the id of what was told before."""
        self.row += 1
        if self._finding is None:
            self._finding = finding
        first = self._finding
        if (not scaled and self.row == _TOLD) or self.row == _HOPELESS:
            first.evidence.append(f"{self.row} steps in a row were skipped: the scale does not come down enough")
            told = self._facts.findings.get(self._told)
            return replace(first, id=told.id, iteration=told.iteration) if told is not None else first
        if self.row == _TOLD:
            self._tell(first, "warning", 0.6)
        return None

    def end(self, ever: bool) -> None:
        """``ever``: a step was made in this run."""
        if self._finding is None or self.row >= _HOPELESS:
            return
        if self._told:
            self._tell(self._finding, "warning", 0.6)
        elif not ever:
            self._tell(self._finding, "note", 0.4)

    def _tell(self, first: Finding, severity: str, confidence: float) -> None:
        known = self._facts.findings.get(self._told)
        self._told = self._facts.tell(
            replace(
                first, id=known.id if known is not None else 0, severity=severity, confidence=confidence,
                iteration=known.iteration if known is not None else None,
                message=f"each of the last {self.row} steps was skipped: the loss scale has not come down yet to "
                "where float16 holds the gradients",
                evidence=[*first.evidence, "each skipped step makes it smaller; init_scale can begin with less"],
            )
        )  # fmt: skip
