"""A mask of ones and zeros that is added to the scores of an attention, where infinities were meant."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_SUMS = frozenset({"add", "baddbmm"})
_KEEP = frozenset({"mul", "multiply", "div", "divide", "truediv", "float", "to", "cast", "reshape", "view"})
_ATTENDS = frozenset({"scaled_dot_product_attention", "memory_efficient_attention"})
_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})
_PASSES = frozenset({"dropout", "to", "cast", "float", "contiguous", "reshape", "view"})
_MOST = 1 << 18  # elements of a mask
_LOW = -1e3


@dataclass(frozen=True, slots=True)
class _Mask:
    sizes: list[int]
    ones: int
    zeros: int
    triangle: bool  # ones on one side of the diagonal, zeros on the other
    ends: bool = False  # the ones of each row end at a length of its own, or begin there


@detector("mask-added")
class AddedMasks(Detector):
    """A mask of 0 and 1 in floating point is added to the scores of an attention, as its framework does with every mask
    of such a type: what is 1 gets e times the weight, nothing is hidden. A mask of bool hides, or one of 0 and -inf.

    Evidence: the numbers of the mask, how many of each.
    Mistaken for: a mask that is learnt, one of other numbers (a bias by distance), ones and zeros beside which another
    mask hides (masked_fill, or numbers below -1,000 that are added), a softmax that weighs no values: not told. Ones
    and zeros that are no triangle and no lengths may be a bonus (for neighbours in a graph): a note.
    Cost: in sampled iterations a look at each sum, and at the numbers of an operand without gradient.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._scores: Marks[_Mask | None] = Marks()  # None: what hides was added
        self._weights: Marks[_Mask] = Marks()  # a softmax of these: of an attention once they meet its values
        self._attended = False
        self._told: set[Any] = set()

    def applied(self) -> bool:
        return self._attended

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.results:
            return
        name = plain(call.name)
        if name in _ATTENDS:
            self._attended = True
            mask = call.keywords.get("attn_mask", call.arguments[3] if len(call.arguments) > 3 else None)
            found = self._read(mask) if mask is not None else None
            if isinstance(found, _Mask):
                self._tell(call, found)
        elif name == "multi_head_attention_forward":
            self._attended = True
            found = self._read(mask) if (mask := call.keywords.get("attn_mask")) is not None else None
            if isinstance(found, _Mask):
                self._tell(call, found)
        elif name in ("masked_fill", "where") and len(shape(call.results[0])) > 2 and self._hides(call):
            self._scores.put(call.results[0], None, name, None)
        elif name in _SUMS and len(call.operands) > 1:
            self._sum(call)
        elif name == "softmax" and call.operands:
            known = self._scores.of(call.operands[0])
            self._attended = self._attended or len(shape(call.operands[0])) > 2
            if known is not None and known.what is not None:
                self._weights.put(call.results[0], known.what, name, line_of(call.lines))
        elif name in _PRODUCTS and (weights := self._weights.of(call.operands[0])) is not None:
            self._tell(call, weights.what, weights.line)
        elif name in _PASSES and call.operands and (weights := self._weights.of(call.operands[0])) is not None:
            self._weights.put(call.results[0], weights.what, weights.name, weights.line)
        elif name in _KEEP and call.operands and (known := self._scores.of(call.operands[0])) is not None:
            self._scores.put(call.results[0], known.what, known.name, known.line)

    def composite(self, call: OperatorCall) -> None:
        if plain(call.name) in (*_ATTENDS, "masked_fill"):
            self.operator(call)

    def _hides(self, call: OperatorCall) -> bool:
        """Whether it fills with a number that is so low; Paddle makes a tensor of it."""
        given = [*call.arguments, *call.keywords.values()]
        numbers = [each for each in given if type(each) in (int, float)]
        single = [few_numbers(self.facts.backend, each, 1) for each in given if not shape(each)]
        numbers += [each.flat[0] for each in single if each is not None and each.flat]
        return any(each <= _LOW for each in numbers)

    def _sum(self, call: OperatorCall) -> None:
        known = next((each for one in call.operands if (each := self._scores.of(one)) is not None), None)
        scores = shape(call.results[0])
        if known is not None and known.what is None:
            self._scores.put(call.results[0], None, call.name, None)
            return
        if len(scores) < 3 or not call.results[0].requires_grad:
            return
        for operand in call.operands:
            sizes = shape(operand)
            if len(sizes) < 2 or operand.requires_grad or sizes[-1] != scores[-1]:
                continue
            found = self._read(operand)
            if found is not None:
                self._scores.put(call.results[0], found if isinstance(found, _Mask) else None, call.name, None)
                return
        if known is not None:
            self._scores.put(call.results[0], known.what, known.name, known.line)

    def _read(self, mask: Any) -> _Mask | bool | None:
        """True: it hides; None: it is no mask."""
        sizes = shape(mask)
        total = 1
        for each in sizes:
            total *= each
        if "float" not in str(getattr(mask, "dtype", "")) or len(sizes) < 2 or not 4 <= total <= _MOST:
            return None
        if mask.requires_grad:
            return None
        read = few_numbers(self.facts.backend, mask, _MOST)
        if read is None:
            return None
        different = set(read.flat[:64]) if total > 64 else set()
        if different - {0.0, 1.0} and min(different) > _LOW:
            return None  # looked at no further
        different = set(read.flat)
        if min(different) <= _LOW:
            return True
        if different != {0.0, 1.0}:
            return None
        ones = sum(1 for each in read.flat if each)
        rows, columns = sizes[-2], sizes[-1]
        block = read.flat[: rows * columns]
        lower = all(bool(block[at * columns + to]) == (to <= at) for at in range(rows) for to in range(columns))
        upper = all(bool(block[at * columns + to]) == (to > at) for at in range(rows) for to in range(columns))
        lines = [read.flat[at : at + columns] for at in range(0, total, columns)]
        if all(sum(line) == 1 for line in lines):
            return None  # of each row one: classes, not what is hidden
        counts = {sum(line) for line in lines}
        ends = len(counts) > 1 and all(sum(a != b for a, b in itertools.pairwise(line)) <= 1 for line in lines)
        return _Mask(sizes, ones, total - ones, rows > 1 and (lower or upper), ends)

    def _tell(self, call: OperatorCall, mask: _Mask, line: SourceLine | None = None) -> None:
        facts, line = self.facts, line or line_of(call.lines)
        if line in self._told:
            return
        self._told.add(line)
        shown = "a triangle of ones" if mask.triangle else "ones and zeros"
        severity, sure = "note", 0.45
        if mask.triangle or mask.ends:
            severity, sure = ("error", 0.9) if mask.triangle else ("warning", 0.8)
        facts.tell(
            Finding(
                0, "mask-added", severity, sure,
                f"the mask that the attention at {place(line)} adds to its scores is {shown} in floating point: it "
                "hides nothing, what is 1 gets e times the weight of what is 0",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"its shape is {mask.sizes}; {mask.ones:,} are 1 and {mask.zeros:,} are 0",
                    "give a mask of bool, or one of 0 and -inf, which is added",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip
