"""Weights of an attention that a softmax normalised along another axis than the product with the values sums over.
Asked by ``axes``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_PRODUCTS = frozenset({"matmul", "bmm", "einsum"})
_KEEPS = frozenset({"clone", "contiguous", "float", "to", "cast", "assign", "dropout"})
_TURNS = frozenset({"transpose", "swapaxes", "swapdims", "permute", "mT", "reshape", "view"})
_LINES = 64
Sums = Callable[[Any, int], "tuple[float, float] | None"]


@dataclass(slots=True)
class _Weights:
    axis: int
    sizes: list[int]
    scores: SourceLine | None
    divided: bool = False  # its sums are taken, as what divides by them does


@dataclass(slots=True)
class _Used:
    weights: _Weights
    softmax: SourceLine | None
    name: str
    line: SourceLine | None
    axis: int  # that it sums over
    sums: tuple[float, float]


class Attention:
    """Scores are the product of two batches that no parameter is by itself: assignments to clusters that are learnt,
    and what a layer gives, are meant to be summed over another axis (NetVLAD, DiffPool, topics). Not told where the
    sums of the weights are taken as well (slots are divided by them), where the weights are turned between softmax and
    product, where what they meet is normalised itself, and where the sum is over another axis than their last: a memory
    is written so, from each query to its places."""

    def __init__(self, facts: Facts, sums: Sums) -> None:
        self._facts = facts
        self._sums = sums
        self._scores: Marks[None] = Marks()
        self._weights: Marks[_Weights] = Marks()
        self._found: list[_Used] = []
        self._looked: set[SourceLine | None] = set()  # at the numbers
        self._any = False

    def operator(self, call: OperatorCall, name: str) -> None:
        if name in _PRODUCTS:
            self._product(call, name)
        elif self._any:
            self._follow(call, name)

    def iteration_end(self) -> None:
        for each in self._found:
            if not each.weights.divided:
                self._tell(each)
        self._found = []

    def _follow(self, call: OperatorCall, name: str) -> None:
        result = call.results[0]
        sizes = shape(result)
        for operand in call.operands:
            known = self._weights.of(operand)
            if known is not None:
                if name == "sum":
                    known.what.divided = True
                elif name in _KEEPS and sizes == known.what.sizes:
                    self._weights.put(result, known.what, known.name, known.line)
                return
            scores = self._scores.of(operand)
            if scores is None:
                continue
            if name == "softmax":
                axis = axis_of(call)
                if axis is not None:
                    what = _Weights(axis % len(sizes), sizes, scores.line)
                    self._weights.put(result, what, call.name, line_of(call.lines))
            elif name not in _TURNS and sizes == shape(operand):  # scaled, masked
                self._scores.put(result, None, scores.name, scores.line)
            return

    def _product(self, call: OperatorCall, name: str) -> None:
        if len(call.operands) != 2:
            return
        both = [self._weights.of(each) for each in call.operands] if self._any else [None, None]
        if both == [None, None]:
            one, other = (shape(each) for each in call.operands)
            learnt = any(each.is_leaf and each.requires_grad for each in call.operands)
            if len(one) == len(other) > 2 and one[0] == other[0] and not learnt:
                self._scores.put(call.results[0], None, call.name, line_of(call.lines))
                self._any = True
            return
        for at, known in enumerate(both):
            if known is None or (at and name != "einsum") or both[1 - at] is not None:
                continue
            axis = _summed(call, name, at)
            line = line_of(call.lines)
            if (
                axis != len(known.what.sizes) - 1
                or axis == known.what.axis
                or line in self._looked
                or len(self._looked) > _LINES
            ):
                continue
            self._looked.add(line)
            sums = self._sums(call.operands[at], axis)
            if sums is not None:
                self._found.append(_Used(known.what, known.line, call.name, line, axis, sums))

    def _tell(self, used: _Used) -> None:
        facts, weights = self._facts, used.weights
        sizes = weights.sizes
        same = sizes[used.axis] == sizes[weights.axis]
        message = (
            f"softmax at {place(used.softmax)} works along axis {weights.axis} of {sizes}, and {used.name} at "
            f"{place(used.line)} sums over axis {used.axis}: the weights of one sum do not add up to 1"
        )
        evidence = [
            f"what the softmax gets is the product of {place(weights.scores)}",
            f"along axis {used.axis}, of {sizes[used.axis]} elements, they add up to {values.plain(used.sums[0])} to "
            f"{values.plain(used.sums[1])}",
            f"softmax along axis {used.axis} gives weights that add up to 1",
        ]  # fmt: skip
        if same:
            evidence.append("whether the columns are meant to be normalised decides it: both axes have one size")
        severity, sure = ("note", 0.45) if same else ("warning", 0.75)
        facts.tell(
            Finding(0, "wrong-axis", severity, sure, message, None, None, facts.iteration + 1, used.line,
                    facts.cause(used.softmax), evidence, [f"b {place(used.softmax)}", "info node"])
        )  # fmt: skip


def _summed(call: OperatorCall, name: str, at: int) -> int | None:
    """The axis of that operand that the product sums over; None where it is not one."""
    rank = len(shape(call.operands[at]))
    if name == "einsum":
        equation = next((each for each in call.arguments if isinstance(each, str)), call.keywords.get("equation"))
        if not isinstance(equation, str) or "->" not in equation or "." in equation:
            return None
        inner, result = equation.replace(" ", "").split("->")
        terms = inner.split(",")
        if len(terms) != 2 or len(terms[at]) != rank or len(set(terms[at])) != rank:
            return None
        gone = [place for place, letter in enumerate(terms[at]) if letter not in result]
        return gone[0] if len(gone) == 1 else None
    if len(shape(call.operands[1 - at])) < 3:
        return None
    turned = call.keywords.get("transpose_x", call.arguments[2] if len(call.arguments) > 2 else False)
    return rank - 2 if turned is True and plain(call.name) == "matmul" else rank - 1
