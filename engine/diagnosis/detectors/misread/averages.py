"""Moving averages of a type whose steps are larger than their updates."""

from __future__ import annotations

import math
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_DIGITS = {"bfloat16": 8, "float16": 11}  # of a significand, the hidden one within
_CASTS = frozenset({"to", "cast", "float", "astype", "bfloat16", "half", "type"})
_MOVES = frozenset({"add", "sub", "lerp", "mul", "multiply", "subtract", "scale"})
_MOST = 4096  # elements that are compared
_SHARE = 0.5
_TIMES = 2  # iterations in which it is seen
_LEAST = 16  # elements that differ


@detector("lost-update")
class RoundedAverages(Detector):
    """An average that moves a little in each step (an EMA of weights) is kept in bfloat16 or float16: what it moves by
    is less than half of the distance to the next number of that type, and rounded away, so that it stays what it was.

    Evidence: of how many elements that differ from what they are to come to the step is lost, the largest and the
    smallest share that is added; or a factor that leaves each number of the type what it is.
    Mistaken for: parameters that an optimizer trains (told elsewhere), an average that has come to where it goes, and
    one that is kept in float32 and cast as it is used: not told.
    Cost: in sampled iterations a look at the type of what ``lerp_`` and products with a number write.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._seen: dict[SourceLine, set[int]] = {}
        self._told: set[SourceLine] = set()
        # In float32: the type that it came from, its numbers there, whether something was added since.
        self._wide: Marks[tuple[str, list[float], bool]] = Marks()

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        if call.error is not None or not call.results or not call.operands:
            return
        if name in _CASTS:
            self._cast(call)
        elif name in _MOVES:
            self._moved(call)
        if name not in ("lerp", "mul", "multiply", "scale"):
            return
        average, line = call.operands[0], line_of(call.lines)
        digits = _DIGITS.get(str(getattr(average, "dtype", "")).rpartition(".")[2])
        if digits is None or line is None or line in self._told or average.requires_grad or call.in_backward:
            return
        why = self._lerp(call, digits) if name == "lerp" else _factor(call, digits)
        if why:
            self._see(line, str(average.dtype).rpartition(".")[2], why)

    def _see(self, line: SourceLine, kind: str, why: str) -> None:
        seen = self._seen.setdefault(line, set())
        seen.add(self.facts.iteration)
        if len(seen) >= _TIMES:
            self._told.add(line)
            self._tell(line, kind, why)

    def _cast(self, call: OperatorCall) -> None:
        """``average.float()``, which is moved and cast back: how many elements are what they were."""
        before, after, line = call.operands[0], call.results[0], line_of(call.lines)
        kinds = [str(each.dtype).rpartition(".")[2] for each in (before, after)]
        if before.requires_grad or line is None or line in self._told or call.in_backward:
            return
        if kinds[0] in _DIGITS and kinds[1] == "float32":
            read = numbers(self.facts.backend, before)
            if read is not None:
                self._wide.put(after, (kinds[0], list(read.flat[:_MOST]), False), call.name, line)
            return
        known = self._wide.of(before)
        if known is None or not known.what[2] or kinds[1] != known.what[0]:
            return
        wide, narrow = (numbers(self.facts.backend, each) for each in (before, after))
        if wide is None or narrow is None:
            return
        rows = list(zip(known.what[1], wide.flat, narrow.flat))
        moved = [(was, now) for was, to, now in rows if to != was]
        lost = sum(was == now for was, now in moved)
        if len(moved) >= _LEAST and lost >= _SHARE * len(moved):
            why = f"{lost:,} of {len(moved):,} elements that moved in float32 are what they were, once cast back"
            self._see(line, kinds[1], why)

    def _moved(self, call: OperatorCall) -> None:
        known = self._wide.of(call.operands[0])
        if known is not None and not call.results[0].requires_grad:
            kind, was, _ = known.what
            self._wide.put(call.results[0], (kind, was, True), known.name, known.line)

    def _lerp(self, call: OperatorCall, digits: int) -> str:
        weight = call.keywords.get("weight", call.arguments[2] if len(call.arguments) > 2 else None)
        if not call.name.endswith("_") or len(call.operands) < 2 or type(weight) is not float or not 0 < weight < 1:
            return ""
        average, goal = (numbers(self.facts.backend, each) for each in call.operands[:2])
        if average is None or goal is None or len(average.flat) != len(goal.flat):
            return ""
        differ = lost = 0
        for here, there in zip(average.flat[:_MOST], goal.flat[:_MOST]):
            if here != there and here - here == 0 == there - there:
                differ += 1
                lost += weight * abs(there - here) < 0.5 * math.ldexp(1.0, math.frexp(here)[1] - digits)
        if differ < _LEAST or lost < _SHARE * differ:
            return ""
        return (
            f"{lost:,} of {differ:,} elements that are not yet what they are to be stay what they are: {weight:.3g} of "
            "the difference is less than half of the step to the next number"
        )

    def _tell(self, line: SourceLine, kind: str, why: str) -> None:
        facts = self.facts
        facts.tell(
            Finding(
                0, "lost-update", "warning", 0.85,
                f"{place(line)} moves an average of {kind} by less than its numbers lie apart: it is rounded away, and "
                "the average stays behind",
                None, None, facts.iteration, line, facts.cause(line),
                [why, "keep the average in float32, and cast where it is used"],
                [f"b {place(line)}"],
            )
        )  # fmt: skip


def _factor(call: OperatorCall, digits: int) -> str:
    """Of a product with a number so near to 1 that each number of the type stays what it is."""
    given = [each for each in (*call.arguments[1:2], *call.keywords.values()) if type(each) is float]
    if len(call.operands) != 1 or len(given) != 1 or not 1 - 2.0**-digits / 2 < given[0] < 1:
        return ""
    if call.grad_mode or math.prod(call.operands[0].shape) < _LEAST:
        return ""
    return f"a factor of {given[0]:.6g} leaves every number of this type what it is: it has {digits} binary digits"
