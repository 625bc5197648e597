"""Similarities that are multiplied by their temperature."""

from __future__ import annotations

from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import SAME
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_PRODUCTS = frozenset({"matmul", "mm", "bmm", "einsum"})
_LOSSES = frozenset({"cross_entropy", "cross_entropy_with_softmax"})
_MOST = 0.5  # of a temperature
_ITERATIONS = 2


@detector("loss-input")
class TemperatureMultiplied(Detector):
    """``logits = (a @ b.T) * 0.07`` of unit vectors: they lie between -0.07 and 0.07, so that every class is as likely
    as every other, whatever the vectors are; similarities are divided by a temperature.

    Evidence: the factor, the largest similarity, and how far the loss can fall at most.
    Mistaken for: factors of products that are no similarities of unit vectors (not told: they go beyond 1).
    Cost: in sampled iterations a look at each operator's name; the range of a product that is multiplied so.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._similar: Marks[None] = Marks()
        self._scaled: Marks[float] = Marks()
        self._seen: dict[SourceLine | None, int] = {}
        self._any = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.results or not call.operands or not call.grad_mode:
            return
        name, result = plain(call.name), call.results[0]
        if name in _PRODUCTS and result.requires_grad and len(shape(result)) == 2:
            self._similar.put(result, None, name, line_of(call.lines))
        elif name in ("mul", "multiply", "scale") and len(call.operands) == 1:
            self._multiplied(call, result)
        elif name in SAME:
            known = self._scaled.of(call.operands[0])
            if known is not None:
                self._scaled.put(result, known.what, known.name, known.line)
        elif name in _LOSSES:
            self._loss(call)

    def _multiplied(self, call: OperatorCall, result: Any) -> None:
        numbers = [float(each) for each in (*call.arguments, *call.keywords.values()) if type(each) in (int, float)]
        if self._similar.of(call.operands[0]) is None or not numbers or not 0 < numbers[0] <= _MOST:
            return
        read = self.facts.backend.stats(call.operands[0])
        if read.max is not None and read.min is not None and max(read.max, -read.min) <= 1.001:
            self._scaled.put(result, numbers[0], call.name, line_of(call.lines))

    def _loss(self, call: OperatorCall) -> None:
        known = self._scaled.of(call.operands[0])
        if known is None:
            return
        self._any = True
        times = self._seen[known.line] = self._seen.get(known.line, 0) + 1
        if times != _ITERATIONS:
            return
        facts, line, factor = self.facts, line_of(call.lines), known.what
        message = (
            f"{place(known.line)} multiplies similarities of unit vectors by {factor:g}, so that {call.name} at "
            f"{place(line)} is given logits within {factor:g} of 0: all classes stay as likely; divide by it"
        )
        evidence = [
            f"{place(known.line)}: {facts.text_of(known.line) if known.line is not None else ''}",
            f"no similarity is beyond 1: no class is more than exp({2 * factor:g}) times as likely as another one",
        ]
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.88, message, None, None, facts.iteration + 1, line,
                facts.cause(known.line), evidence, [f"b {place(known.line)}"],
            )
        )  # fmt: skip
