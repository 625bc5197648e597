"""Targets that lost what they were as integers were made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.graphs.losses import DIFFERENCES, PAIRED, SAME
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Finding

_CASTS = frozenset({
    "long", "int", "short", "char", "byte", "to", "type", "cast", "astype", "type_as", "tensor", "as_tensor",
    "to_tensor", "asarray", "new_tensor", "LongTensor", "IntTensor",
})  # fmt: skip
_JOINS = SAME | frozenset({"stack", "cat", "concat", "index_select", "gather", "type", "astype", "type_as", "detach"})
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_AS_ANOTHER = frozenset({"to", "type", "type_as", "astype", "cast"})
_LIBRARIES = ("numpy", "torch", "paddle")
_FILLS = frozenset({"full_like", "new_full"})
_SHARE = 0.05  # of the values that are written into a tensor of integers, those that lose something
_INDEXED = frozenset({"getitem", "gather", "index_select", "embedding", "take", "take_along_dim", "gather_nd"})
_SUMS = frozenset({"sub", "subtract", "rsub", "add", "mul", "multiply", "div", "divide", "truediv", "neg", "scale"})
_LEAST = 8  # elements: of fewer, all alike says little
_MOST = 4096  # that are looked at


@dataclass(frozen=True, slots=True)
class _Lost:
    """``seen``: how many were looked at; ``low``, ``high``: between which they lay; ``became``: all of them."""

    seen: int
    low: float
    high: float
    became: int


@dataclass(frozen=True, slots=True)
class _Written:
    """``cut``: of ``seen`` values those that lost a fraction, one of them ``value``; into a tensor of ``kind``."""

    seen: int
    cut: int
    value: float
    kind: str


@detector("loss-input")
class Truncated(Detector):
    """A prediction is compared with integers that were made of fractions and are all one number: coordinates between 0
    and 1 as int64 are all 0.

    Evidence: what the values were before, what all of them are since, the line that made integers of them.
    Mistaken for: classes, indices and values that are rounded to a grid, which are not all alike; fewer than 8 values.
    Cost: in sampled iterations a look at the dtype that each operator gives, and at the values of what is cast.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[_Lost] = Marks()
        self._told = False

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or not call.results:
            return
        name, result = plain(call.name), call.results[0]
        if name in _CASTS and str(result.dtype).rpartition(".")[2] in _INTEGERS:
            lost = self._lost(call, result)
            if lost is not None:
                self._marks.put(result, lost, call.name, line_of(call.lines))
                return
        known = next((found for each in call.operands if (found := self._marks.of(each)) is not None), None)
        if known is None:
            return
        if name in _JOINS:
            self._marks.put(result, known.what, known.name, known.line)
        elif name in DIFFERENCES | PAIRED and any(each.requires_grad for each in call.operands):
            self._tell(call, known.what, known.name, known.line)

    def _lost(self, call: OperatorCall, result: Any) -> _Lost | None:
        made = numbers(self.facts.backend, result)
        if made is None or len(made.flat) < _LEAST or len(set(made.flat[:_MOST])) != 1:
            return None
        first = call.operands[0] if call.operands else None
        read = numbers(self.facts.backend, first) if first is not None and first is not result else None
        given = read.flat[:_MOST] if read is not None else list(_floats(call.arguments[:1]))
        if (
            len(given) < _LEAST
            or max(given) == min(given)
            or all(each == int(each) for each in given if each - each == 0)
        ):
            return None
        return _Lost(len(given), min(given), max(given), int(made.flat[0]))

    def _tell(self, call: OperatorCall, lost: _Lost, name: str, made: Any) -> None:
        self._told = True
        facts, line = self.facts, line_of(call.lines)
        message = (
            f"{call.name} at {place(line)} compares a prediction with integers that {name} at {place(made)} made of "
            f"fractions: all are {lost.became}"
        )
        evidence = [
            f"{lost.seen:,} values were looked at: they lay between {lost.low:.4g} and {lost.high:.4g} before {name}",
            f"as integers all of them are {lost.became}: keep the target of a regression in floating point",
        ]
        facts.tell(
            Finding(0, "loss-input", "error", 0.92, message, None, None, facts.iteration + 1, line, facts.cause(made),
                    evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip


@detector("loss-input")
class Written(Detector):
    """Values with fractions are written into a tensor of integers, which drops these (``returns = zeros_like(rewards)``
    of whole rewards, ``returns[t] = running``; ``full_like(labels, 0.4)``), and what is learnt is compared with it, or
    multiplied by it.

    Evidence: how many of the values lost what they had after the point, one of them, the type of the tensor.
    Mistaken for: whole numbers of a floating type, what is cast to integers by name (not told), counts (nothing is
    lost), what is used as an index or overwritten since, images of uint8, what no prediction meets. A warning: a target
    may be cut on purpose.
    Cost: in sampled iterations a look at the types where something is written into a tensor, and at the values of a
    float that is written into an integer.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[_Written] = Marks()
        self._casts: Marks[_Written] = Marks()  # ``x.to(table)``, and not written anywhere yet
        self._told = False

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or not call.operands:
            return
        name = plain(call.name)
        if name in ("setitem", "copy", "index_put") and len(call.operands) > 1:
            cast = self._casts.of(call.operands[-1])
            written = cast.what if cast is not None else self._cut(call.operands[0], call.operands[-1])
            if written is not None:
                self._marks.put(call.operands[0], written, call.name, line_of(call.lines))
            elif name == "copy":
                self._marks.drop(call.operands[0])
            return
        filled = self._filled(call) if name in _FILLS and call.results else None
        if filled is not None:
            self._marks.put(call.results[0], filled, call.name, line_of(call.lines))
            return
        if name in _AS_ANOTHER and call.results and self._is_as_another(call):
            cut = self._cut(call.results[0], call.operands[0])
            if cut is not None:
                self._casts.put(call.results[0], cut, call.name, line_of(call.lines))
        if name in _INDEXED:  # what is used as an index is cut on purpose
            for each in call.operands[1:]:
                self._marks.drop(each)
        elif name not in _SUMS:
            for each in writes(call):
                self._marks.drop(each)
        among = call.operands[:1] if name in _INDEXED else call.operands
        known = next((found for each in among if (found := self._marks.of(each)) is not None), None)
        if known is None:
            return
        if name in _SUMS | DIFFERENCES | PAIRED and any(each.requires_grad for each in call.operands):
            self._tell(call, known.what, known.line)
        elif name in _SUMS | _JOINS | DIFFERENCES | {"cast", "float", "to", "where"}:
            for each in call.results:
                self._marks.put(each, known.what, known.name, known.line)

    @staticmethod
    def _filled(call: OperatorCall) -> _Written | None:
        """``full_like(labels, 0.4)`` of whole numbers is 0 everywhere."""
        kind = str(call.results[0].dtype).rpartition(".")[2]
        given = [each for each in (*call.arguments[1:], *call.keywords.values()) if isinstance(each, float)]
        cut = [each for each in given if _has_fraction(each)]
        size = math.prod(call.results[0].shape)
        return _Written(size, size, cut[0], kind) if cut and kind in _INTEGERS and size else None

    def _is_as_another(self, call: OperatorCall) -> bool:
        """A cast to the type of another tensor, whatever that is: no word says that integers are wanted."""
        line = line_of(call.lines)
        return len(call.operands) > 1 or (line is not None and ".dtype" in self.facts.text_of(line))

    def _cut(self, target: Any, value: Any) -> _Written | None:
        kind = str(target.dtype).rpartition(".")[2]
        if kind not in _INTEGERS or kind == "uint8" or "float" not in str(value.dtype):
            return None
        read = numbers(self.facts.backend, value)
        given = read.flat[:_MOST] if read is not None else []
        cut = [each for each in given if _has_fraction(each)]
        return _Written(len(given), len(cut), cut[0], kind) if len(cut) > _SHARE * len(given) else None

    def _tell(self, call: OperatorCall, written: _Written, made: Any) -> None:
        self._told = True
        facts, line = self.facts, line_of(call.lines)
        message = (
            f"{place(made)} writes fractions into a tensor of {written.kind}, which drops them, and {call.name} at "
            f"{place(line)} takes that together with what is learnt"
        )
        evidence = [
            f"{written.cut:,} of {written.seen:,} values that were written lost what they had after the point: "
            f"{written.value:.6g} became {int(written.value)}",
            f"the tensor is {written.kind}: make it of a floating type (dtype=float32)",
        ]
        facts.tell(
            Finding(0, "loss-input", "warning", 0.8, message, None, None, facts.iteration + 1, line, facts.cause(made),
                    evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip


def _has_fraction(value: float) -> bool:
    return value - value == 0 and value != int(value)


def _floats(value: Any) -> Iterator[float]:
    """The numbers of nested lists, tuples and arrays: the first of them."""
    waiting, found = [value], 0
    while waiting and found < _MOST:
        each = waiting.pop()
        if isinstance(each, (list, tuple)):
            waiting.extend(reversed(each[:_MOST]))
        elif type(each).__module__.partition(".")[0] in _LIBRARIES:  # no attribute of the program's own is asked for
            try:
                waiting.append(each.reshape(-1)[:_MOST].tolist())
            except own(Exception):
                return
        elif isinstance(each, (int, float)):
            found += 1
            yield float(each)
