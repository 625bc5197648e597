"""Scores that a distribution takes for weights."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.protocol.messages import Finding

_DIVIDES = frozenset({"truediv", "div", "divide"})
_PICKS = frozenset({"take_along_axis", "gather"})
_MADE = "Categorical("
_MOST = 1 << 18


@detector("loss-input")
class WeightsTaken(Detector):
    """Paddle's ``Categorical(logits)`` divides what it is given by its sum for ``probs`` and ``log_prob``; only
    ``sample``, ``entropy`` and ``kl_divergence`` take a softmax of it. Of scores, which may be negative, ``log_prob``
    is no probability, and its gradient may point the other way.

    Evidence: how many of the numbers are negative; their sums.
    Mistaken for: weights that are all positive, distributions that are only drawn from (not told).
    Cost: in sampled iterations a look at each division by a sum.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._sums: Marks[Any] = Marks()
        self._shares: Marks[tuple[int, int]] = Marks()  # of which so many of so many are negative
        self._told: set[Any] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands or self.facts.backend.name != "paddle":
            return
        name = plain(call.name)
        if name == "sum":
            self._sums.put(call.results[0], id(call.operands[0]), name, None)
        elif name in _DIVIDES and len(call.operands) == 2:
            self._divide(call)
        elif name == "expand" and (known := self._shares.of(call.operands[0])) is not None:
            self._shares.put(call.results[0], known.what, known.name, known.line)
        elif name in _PICKS and call.grad_mode and (known := self._shares.of(call.operands[0])) is not None:
            self._tell(call, known)

    def _divide(self, call: OperatorCall) -> None:
        weights, total = call.operands
        summed, line = self._sums.of(total), line_of(call.lines)
        if summed is None or summed.what != id(weights) or line is None or _MADE not in self.facts.text_of(line):
            return
        read = numbers(self.facts.backend, weights)
        seen = read.flat[:_MOST] if read is not None else ()
        negative = sum(1 for each in seen if each < 0)
        if negative:
            self._shares.put(call.results[0], (negative, len(seen)), call.name, line)

    def _tell(self, call: OperatorCall, known: Any) -> None:
        facts, line = self.facts, line_of(call.lines)
        if line in self._told:
            return
        self._told.add(line)
        negative, seen = known.what
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.9,
                f"{place(line)} takes probabilities of a Categorical, made at {place(known.line)}, that Paddle "
                f"computes as shares of a sum, not by a softmax: {negative:,} of {seen:,} of the numbers are negative",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    "paddle.distribution.Categorical: probs and log_prob divide what it was given by its sum; sample "
                    "and entropy take a softmax of it",
                    "take log_softmax of the scores, and of that what the actions say: take_along_axis",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip
