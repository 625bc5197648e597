"""Scores that are one number along the axis which their softmax chooses on: every choice gets the same weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_ADDS = frozenset({"add", "sub", "subtract"})
_FILLS = frozenset({"where", "masked_fill"})
_COPIES = frozenset({"expand", "expand_as", "broadcast_to", "tile", "repeat"})
_KEEPS = frozenset({"clone", "contiguous", "float", "double", "half", "bfloat16", "to", "cast", "assign"})
_BENDS = _KEEPS | frozenset({"leaky_relu", "relu", "elu", "tanh", "sigmoid", "dropout", "scale"})
_MASKED = -1e4  # what is put in the place of a score is at most this: nothing is left of it after a softmax


@dataclass(frozen=True, slots=True)
class _Spread:
    """``axes``, counted from the last (-1), along which all scores that no mask took are one number; ``score``: the
    shape of what was broadcast so; ``summed``: where that was put together of two of its own shape."""

    axes: frozenset[int]
    score: list[int]
    line: SourceLine | None
    name: str
    summed: SourceLine | None


@detector("zero-gradient")
class ConstantScores(Detector):
    """Scores of one number for each query, (N, 1), are broadcast over what is to be chosen from, by a mask of (N, M)
    or a copy, and a softmax goes along that axis: it gives each choice the same weight whatever the scores are, and
    what made them gets no gradient but rounding errors. Often the scores of both sides were added as (N, 1) and
    (N, 1), and one was to be turned: (N, 1) and (1, N).

    Evidence: the shapes of the scores and of what they became, and the lines of the broadcast and of the softmax.
    Mistaken for: a mask that is learnt, or added to scores that differ by themselves, trained or not, and a fill that a
    softmax leaves something of (not told); an even choice that is meant has nothing to learn.
    Cost: in sampled iterations a look at each operator's name, and at the shapes of sums, masks and copies.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._spread: Marks[_Spread] = Marks()
        self._summed: Marks[list[int]] = Marks()
        self._told: set[SourceLine | None] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        if name in _ADDS | _FILLS | _COPIES:
            self._broadcast(call, name, result)
        elif name == "softmax":
            self._chosen(call)
        elif name in _BENDS:
            sum_of = self._summed.of(call.operands[0])
            if sum_of is not None and shape(result) == sum_of.what:
                self._summed.put(result, sum_of.what, sum_of.name, sum_of.line)
            known = self._spread.of(call.operands[0])
            if known is not None and name in _KEEPS:
                self._spread.put(result, known.what, known.name, known.line)

    def _learnt(self, call: OperatorCall) -> list[Any]:
        return [each for each in call.operands if self.facts.backend.meta(each).requires_grad]

    def _broadcast(self, call: OperatorCall, name: str, result: Any) -> None:
        learnt, sizes, line = self._learnt(call), shape(result), line_of(call.lines)
        if not learnt or len(sizes) < 2 or (name in _FILLS and not self._takes_away(call, learnt)):
            return
        if len(learnt) == 2 and shape(learnt[0]) == shape(learnt[1]) == sizes and 1 in sizes:
            self._summed.put(result, sizes, name, line)
        axes = frozenset(range(-len(sizes), 0))
        for each in learnt:
            axes &= self._constant(each, sizes)
        for each in call.operands if name in _ADDS and axes else ():
            if not any(each is one for one in learnt) and not (name == "add" and self._is_mask(each)):
                axes &= self._constant(each, sizes)  # scores that nobody trains, which differ by themselves
        if not axes:
            return
        known = next((spread.what for each in learnt if (spread := self._spread.of(each)) is not None), None)
        sum_of = next((summed.line for each in learnt if (summed := self._summed.of(each)) is not None), None)
        what = _Spread(axes, shape(learnt[0]), line, name, sum_of)
        if known is not None:
            what = _Spread(axes, known.score, known.line, known.name, known.summed)
        self._spread.put(result, what, name, line)

    def _constant(self, value: Any, sizes: list[int]) -> frozenset[int]:
        """The axes of ``sizes``, which it is broadcast to, along which it is one number."""
        known, own = self._spread.of(value), shape(value)
        kept = known.what.axes if known is not None else frozenset()
        return frozenset(
            at for at in range(-len(sizes), 0)
            if sizes[at] > 1 and (at in kept or (-at <= len(own) and own[at] == 1))
        )  # fmt: skip

    def _is_mask(self, value: Any) -> bool:
        """Whether it is 0 where it leaves a score, and takes it away everywhere else."""
        read = values.stats(self.facts.backend, value)
        if read is None or read.positive or read.pos_inf or read.nan:
            return False
        exact = values.numbers(self.facts.backend, value) if read.negative else None
        return not read.negative or (exact is not None and all(each == 0 or each <= _MASKED for each in exact.flat))

    def _takes_away(self, call: OperatorCall, learnt: list[Any]) -> bool:
        """Whether a mask puts numbers there that a softmax leaves nothing of."""
        others = [each for each in call.operands if not any(each is one for one in learnt)]
        numbers = [each for each in call.arguments if isinstance(each, (int, float)) and not isinstance(each, bool)]
        numbers += [each for key in ("value", "y", "other") if isinstance(each := call.keywords.get(key), (int, float))]
        if numbers:
            return max(numbers) <= _MASKED
        if len(learnt) != 1 or not others:
            return False
        fill = values.stats(self.facts.backend, others[-1])
        if fill is None or fill.nan or fill.pos_inf:
            return False
        finite = fill.negative + fill.zero + fill.positive
        return fill.max <= _MASKED if finite else fill.neg_inf > 0

    def _chosen(self, call: OperatorCall) -> None:
        known, line = self._spread.of(call.operands[0]), line_of(call.lines)
        sizes, axis = shape(call.operands[0]), axis_of(call)
        if known is None or line in self._told:
            return
        at = (axis % len(sizes) if axis is not None else len(sizes) - 1) - len(sizes)
        if at in known.what.axes:
            self._told.add(line)
            self._tell(known.what, sizes, at, line)

    def _tell(self, spread: _Spread, sizes: list[int], at: int, line: SourceLine | None) -> None:
        facts = self.facts
        message = (
            f"softmax at {place(line)} chooses among {sizes[at]} scores that are one and the same: {spread.name} at "
            f"{place(spread.line)} broadcasts scores of {spread.score} to {sizes}, so that every choice has the same "
            "weight, and what made the scores is not trained"
        )
        evidence = [
            f"the scores have one number along axis {len(sizes) + at} of {sizes}; no mask makes them differ where it "
            "leaves them",
            "softmax does not change when the same number is added to all: the gradient of these scores is 0",
        ]
        if spread.summed is not None:
            evidence.append(
                f"{place(spread.summed)} adds two of {spread.score}: for a score of each pair one of them is turned "
                f"(transpose), {facts.text_of(spread.summed)}"
            )
        facts.tell(
            Finding(
                0, "zero-gradient", "warning", 0.88, message, iteration=facts.iteration + 1, forward=line,
                cause=facts.cause(spread.summed or spread.line), evidence=evidence,
                next=[f"b {place(line)}", f"b {place(spread.line)}"],
            )
        )  # fmt: skip
