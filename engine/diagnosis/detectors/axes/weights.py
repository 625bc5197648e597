"""Weights of a softmax, and the sum that uses them: a product with the values that is then summed over an axis, or a
matrix product. Asked by ``over_batch`` and ``zeros``."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import SAME
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.types import SourceLine

_KEEPS = (SAME | {"dropout", "swapaxes", "swapdims", "mT", "T"}) - {"getitem", "select", "slice"}
_TIMES = frozenset({"mul", "multiply"})
_PRODUCTS = frozenset({"matmul", "bmm"})


@dataclass(frozen=True, slots=True)
class Weights:
    """``sizes`` of what the softmax gave, whose axis ``over`` it went along."""

    sizes: list[int]
    over: int
    softmax: SourceLine
    times: list[int] | None = None  # its sizes in the product with the values, where that is what is marked
    used: Any = None  # what was multiplied there, held weakly


@dataclass(frozen=True, slots=True)
class Summed:
    """``along``: how many elements the sum at ``line`` adds up; ``axis``: which axis of ``value``, the weights as they
    were used, that is."""

    weights: Weights
    along: int
    axis: int
    value: Any
    line: SourceLine | None


def _lengths(sizes: list[int]) -> list[int]:
    return sorted(size for size in sizes if size > 1)


class SummedWeights:
    """Follows the weights that are ``wanted``, by their sizes and the axis of the softmax, up to the sum."""

    def __init__(self, torch: bool, wanted: Callable[[list[int], int], bool], found: Callable[[Summed], None]) -> None:
        self._torch = torch
        self._wanted = wanted
        self._found = found
        self._marks: Marks[Weights] = Marks()
        self._any = False

    def look(self, call: OperatorCall) -> None:
        if not call.results or not call.operands:
            return
        name, result = plain(call.name), call.results[0]
        if name == "softmax":
            self._softmax(call, result)
            return
        for at, operand in enumerate(call.operands[:2] if self._any else ()):
            known = self._marks.of(operand)
            if known is not None:
                self._follow(call, name, at, operand, known.what)
                return

    def _softmax(self, call: OperatorCall, result: Any) -> None:
        sizes, line, axis = shape(result), line_of(call.lines), axis_of(call)
        if axis is None:  # torch's own choice (``torch.nn.functional._get_softmax_dim``); Paddle has the last one
            axis = (0 if len(sizes) in (1, 3) else 1) if self._torch else -1
        over = axis % max(len(sizes), 1)
        if line is not None and len(sizes) > 1 and self._wanted(sizes, over):
            self._any = True
            self._marks.put(result, Weights(sizes, over, line), call.name, line)

    def _follow(self, call: OperatorCall, name: str, at: int, operand: Any, known: Weights) -> None:
        result = call.results[0]
        if known.times is not None:
            axis, value = axis_of(call) if name == "sum" else None, known.used()
            if axis is None or value is None:
                return
            axis %= len(known.times)
            if known.times[axis] > 1:
                wide = len(known.times) - len(shape(value))
                self._found(Summed(known, known.times[axis], axis - wide, value, line_of(call.lines)))
        elif name in _KEEPS and _lengths(shape(result)) == _lengths(known.sizes):  # no axis is split, none merged
            self._marks.put(result, known, call.name, known.softmax)
        elif name in _TIMES and len(call.operands) == 2:
            times = [1] * (len(shape(result)) - len(shape(operand))) + shape(operand)
            product = replace(known, times=times, used=weakref.ref(operand))
            self._marks.put(result, product, call.name, known.softmax)
        elif name in _PRODUCTS and len(call.operands) == 2:
            sizes = shape(operand)
            axis = len(sizes) - (1 if at == 0 or len(sizes) == 1 else 2)
            if sizes[axis] > 1:
                self._found(Summed(known, sizes[axis], axis, operand, line_of(call.lines)))
