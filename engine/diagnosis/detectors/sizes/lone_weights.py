"""Weights of a softmax over an axis of one element, which are all 1, where a sum runs over another axis: scores of
(B, T, 1) that were to be normalised over T."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import SAME
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.types import SourceLine

_KEEPS = SAME | frozenset({"dropout", "swapaxes", "swapdims", "mT", "T"})
_TIMES = frozenset({"mul", "multiply"})
_PRODUCTS = frozenset({"matmul", "bmm"})


@dataclass(frozen=True, slots=True)
class Summed:
    """``sizes`` of what the softmax gave, whose axis ``over`` it went along; ``along``: how many elements the sum at
    ``line`` adds up, each with the weight 1."""

    sizes: list[int]
    over: int
    along: int
    line: SourceLine | None


@dataclass(frozen=True, slots=True)
class _Weights:
    sizes: list[int]
    over: int
    softmax: SourceLine
    times: list[int] | None = None  # its sizes in the product with the values, where that is what is marked


class LoneWeights:
    """Not told: an attention over a single key, whose sum runs over that one (``[B, H, Q, 1] @ [B, H, 1, D]``)."""

    def __init__(self) -> None:
        self._marks: Marks[_Weights] = Marks()
        self.summed: dict[SourceLine, Summed] = {}  # by the line of the softmax

    def look(self, call: OperatorCall) -> None:
        if not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        if name == "softmax":
            self._softmax(call, result)
            return
        for at, operand in enumerate(call.operands[:2]):
            known = self._marks.of(operand)
            if known is not None:
                self._follow(call, name, at, operand, known.what)
                return

    def _softmax(self, call: OperatorCall, result: Any) -> None:
        sizes, line = shape(result), line_of(call.lines)
        axis = axis_of(call)
        over = (axis if axis is not None else -1) % max(len(sizes), 1)
        if line is not None and len(sizes) > 1 and sizes[over] == 1:
            self._marks.put(result, _Weights(sizes, over, line), call.name, line)

    def _follow(self, call: OperatorCall, name: str, at: int, operand: Any, known: _Weights) -> None:
        result = call.results[0]
        if known.times is not None:
            axis = axis_of(call) if name == "sum" else None
            if axis is not None and known.times[axis % len(known.times)] > 1:
                self._found(known, known.times[axis % len(known.times)], call)
        elif name in _KEEPS:
            self._marks.put(result, known, call.name, known.softmax)
        elif name in _TIMES and len(call.operands) == 2:
            wide = len(shape(result)) - len(shape(operand))
            times = [1] * wide + shape(operand)
            self._marks.put(
                result, _Weights(known.sizes, known.over, known.softmax, times), call.name, known.softmax
            )  # fmt: skip
        elif name in _PRODUCTS and len(call.operands) == 2:
            sizes = shape(operand)
            along = sizes[-1] if at == 0 else sizes[-2] if len(sizes) > 1 else 1
            if along > 1:
                self._found(known, along, call)

    def _found(self, known: _Weights, along: int, call: OperatorCall) -> None:
        self.summed.setdefault(known.softmax, Summed(known.sizes, known.over, along, line_of(call.lines)))
