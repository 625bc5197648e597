"""Small integers that overflow: the difference of two bytes is a byte again, 10 - 20 is 246."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.graphs.losses import SAME
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import Numbers, numbers
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_BITS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-32768, 32767)}
_SIGNS = {
    "sub": "-", "subtract": "-", "rsub": "-", "add": "+", "mul": "*", "multiply": "*",
}  # fmt: skip
_JOINS = SAME | frozenset({"stack", "cat", "concat", "index_select", "gather", "detach", "flip", "roll", "repeat"})
_CIRCULAR = re.compile(r"hue|angle|phase|heading|hash|circular|cyclic|wrap|modul|bearing|azimuth", re.I)
_MOST = 4096  # elements that are looked at
_LEAST = 4  # of these overflow, or one in
_SHARE = 256


@dataclass(frozen=True, slots=True)
class _Overflow:
    """``count`` of ``seen`` elements; ``shown``: one of them, computed; ``kind``: "uint8"."""

    seen: int
    count: int
    shown: str
    kind: str


@detector("integer-overflow")
class IntegerOverflow(Detector):
    """Tensors of a small integer type are added, subtracted or multiplied in that type before they become floating
    point: what does not fit wraps around (``frames[1:] - frames[:-1]`` of uint8, ``image + brightness``), without an
    error, and a model learns from that.

    Evidence: how many elements wrapped, and one of them: both operands, what they make, and what came out.
    Mistaken for: arithmetic that is meant to wrap, as in a hash, whose result stays an integer, an angle or a hue, or
    one value for what is left out (``labels - 1``, of which 0 becomes 255; all not told), the integers of a quantised
    layer (computed in int32), bits and masks (``1 - mask``: nothing wraps), a single element.
    Cost: in sampled iterations a look at the dtype of each result; 5 ms where small integers are computed with.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[_Overflow] = Marks()
        self._told: set[object] = set()  # lines

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results:
            return
        name, result = plain(call.name), call.results[0]
        kind = str(result.dtype).rpartition(".")[2]
        if kind in _BITS and name in _SIGNS:
            overflow = self._overflow(call, name, result, kind)
            if overflow is not None:
                self._marks.put(result, overflow, call.name, line_of(call.lines))
            return
        known = next((found for each in call.operands if (found := self._marks.of(each)) is not None), None)
        if known is None:
            return
        if "float" in kind:
            self._tell(call, known.what, known.line)
        elif name in _JOINS and kind == known.what.kind:
            self._marks.put(result, known.what, known.name, known.line)

    def _overflow(self, call: OperatorCall, name: str, result: Any, kind: str) -> _Overflow | None:
        if len(call.arguments) < 2 or writes(call):  # what it was before is not there any more
            return None
        made = numbers(self.facts.backend, result)
        given = [self._given(each, made.shape) for each in call.arguments[:2]] if made is not None else []
        if made is None or any(each is None for each in given):
            return None
        one, other = (given[1], given[0]) if name == "rsub" or call.name == "__rsub__" else (given[0], given[1])
        return _wrapped(made, one or (), other or (), _SIGNS[name], kind)

    def _given(self, value: Any, shape: tuple[int, ...]) -> Sequence[float] | None:
        """The elements of an operand that meet those of the result that are looked at."""
        places = _places(shape)
        if isinstance(value, (int, float)):
            return [value] * len(places)
        read = numbers(self.facts.backend, value) if self.facts.backend.is_tensor(value) else None
        if read is None or "f" in read.dtype:
            return None
        found = [read.at(at, shape) for at in places]
        return [each for each in found if each is not None] if None not in found else None

    def _tell(self, call: OperatorCall, found: _Overflow, made: Any) -> None:
        if made in self._told or (made is not None and _CIRCULAR.search(self.facts.text_of(made))):
            return
        self._told.add(made)
        facts, line = self.facts, line_of(call.lines)
        message = (
            f"{place(made)} computes in {found.kind}, and {found.count:,} of {found.seen:,} elements do not fit: they "
            f"wrap around without an error, and {place(line)} makes floating point of them; convert the operands first"
        )
        evidence = [
            f"{found.shown} in {found.kind}, which holds {_BITS[found.kind][0]} to {_BITS[found.kind][1]}",
        ]
        if line is not None:
            evidence.append(f"{plain(call.name)} at {place(line)}: {facts.text_of(line)}")
        facts.tell(
            Finding(0, "integer-overflow", "warning", 0.85, message, None, None, facts.iteration + 1, line,
                    facts.cause(made), evidence, [f"b {place(line)}", "info node"])
        )  # fmt: skip


def _places(shape: tuple[int, ...]) -> range:
    size = 1
    for each in shape:
        size *= each
    return range(0, size, max(1, size // _MOST))


def _wrapped(made: Numbers, one: Sequence[float], other: Sequence[float], sign: str, kind: str) -> _Overflow | None:
    low, high = _BITS[kind]
    count, shown, became = 0, "", set()
    places = _places(made.shape)
    for at, left, right in itertools.islice(zip(places, one, other), 2 * _MOST):
        exact = left - right if sign == "-" else left + right if sign == "+" else left * right
        if low <= exact <= high or made.flat[at] != (exact - low) % (high - low + 1) + low:
            continue
        count += 1
        became.add(made.flat[at])
        shown = shown or f"{left:g} {sign} {right:g} = {exact:g} became {made.flat[at]:g}"
    many = count >= max(_LEAST, len(places) // _SHARE) and len(became) > 1
    return _Overflow(len(places), count, shown, kind) if many else None
