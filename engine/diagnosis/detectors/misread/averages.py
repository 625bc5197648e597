"""Moving averages of a type whose steps are larger than their updates."""

from __future__ import annotations

import math
import weakref
from array import array
from typing import Any

from adbg.engine.backends.base import OperatorCall, OptimizerEvent
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_DIGITS = {"bfloat16": 8, "float16": 11}  # of a significand, the hidden one within
_CASTS = frozenset({"to", "cast", "float", "astype", "bfloat16", "half", "type"})
_MOVES = frozenset({"add", "sub", "lerp", "mul", "multiply", "subtract", "scale"})
_MOST = 1 << 16  # elements of what is looked at
_COMPARED = 512
_SHARE = 0.5
_TIMES = 2  # iterations in which it is seen
_LEAST = 16  # elements that differ
_KEPT = 32  # tensors whose numbers are kept, of one iteration
_ALIVE = 256  # averages that are known again


class _Wide:
    """An average in float32, as it was cast: ``was`` is what it had before, ``moved`` whether something was added."""

    __slots__ = ("kind", "moved", "ref", "was")

    def __init__(self, value: Any, kind: str, was: array[float], moved: bool) -> None:
        self.ref = weakref.ref(value)
        self.kind, self.was, self.moved = kind, was, moved


@detector("lost-update")
class RoundedAverages(Detector):
    """An average that moves a little in each step (an EMA of weights) is kept in bfloat16 or float16: what it moves by
    is less than half of the distance to the next number of that type, and rounded away, so that it stays what it was.

    Evidence: of how many elements that differ from what they are to come to the step is lost; how many are what they
    were once they are cast back; or a factor, in place, that leaves each number of the type what it is.
    Mistaken for: parameters that an optimizer trains, and its own state (told elsewhere), an average that has come to
    where it goes, one that is kept in float32 and cast as it is used, a remainder that is kept beside it (compensated
    sums), and products of what is made anew in each step: not told.
    Cost: in sampled iterations a look at the type of what ``lerp_``, products with a number and casts take; 512 numbers
    of what is cast from such a type.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._seen: dict[SourceLine, set[int]] = {}
        self._told: set[SourceLine] = set()
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}  # half ones that were written: in which iteration
        self._wide: list[_Wide] = []
        self._pending: list[tuple[_Wide, SourceLine, str]] = []  # cast back, unless what they were cast from is used
        self._stepping = False

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what in ("step", "stepped"):
            self._stepping = event.what == "step"

    def operator(self, call: OperatorCall) -> None:
        if self._stepping or call.error is not None or not call.results or not call.operands or call.in_backward:
            return
        name = plain(call.name)
        if self._pending:
            self._pending = [each for each in self._pending if not any(each[0].ref() is one for one in call.operands)]
        if name in _CASTS:
            self._cast(call)
        elif name in _MOVES and self._wide:
            self._moved(call)
        if name not in ("lerp", "mul", "multiply", "scale"):
            return
        average, line = call.operands[0], line_of(call.lines)
        digits = _DIGITS.get(str(getattr(average, "dtype", "")).rpartition(".")[2])
        written = call.name.endswith("_") or call.name.startswith("__i")
        if digits is None or not written or line is None or line in self._told or average.requires_grad:
            return
        why = self._lerp(call, digits) if name == "lerp" else _factor(call, digits)
        if why and self._lives(average):
            self._see(line, str(average.dtype).rpartition(".")[2], why)

    def _lives(self, average: Any) -> bool:
        """It was written in an earlier iteration: no average is made anew in each."""
        known = self._known.get(id(average))
        if known is None or known[0]() is not average:
            if len(self._known) < _ALIVE:
                self._known[id(average)] = (weakref.ref(average), self.facts.iteration)
            return False
        return known[1] < self.facts.iteration

    def _see(self, line: SourceLine, kind: str, why: str) -> None:
        seen = self._seen.setdefault(line, set())
        seen.add(self.facts.iteration)
        if len(seen) >= _TIMES and line not in self._told:
            self._told.add(line)
            self._tell(line, kind, why)

    def _cast(self, call: OperatorCall) -> None:
        """``average.float()``, which is moved and cast back: how many elements are what they were."""
        before, after, line = call.operands[0], call.results[0], line_of(call.lines)
        kinds = [str(each.dtype).rpartition(".")[2] for each in (before, after)]
        if before.requires_grad or after.requires_grad or line is None or line in self._told:
            return
        if kinds[0] in _DIGITS and kinds[1] == "float32":
            read = few_numbers(self.facts.backend, before, _MOST) if len(self._wide) < _KEPT else None
            if read is not None:
                self._wide.append(_Wide(after, kinds[0], array("f", read.flat[:_COMPARED]), False))
            return
        known = next((each for each in self._wide if each.ref() is before), None)
        if known is None or not known.moved or kinds[1] != known.kind:
            return
        wide, narrow = (few_numbers(self.facts.backend, each, _MOST) for each in (before, after))
        if wide is None or narrow is None:
            return
        rows = list(zip(known.was, wide.flat, narrow.flat))
        moved = [(was, now) for was, to, now in rows if to != was]
        lost = sum(was == now for was, now in moved)
        if len(moved) >= _LEAST and lost >= _SHARE * len(moved):
            why = f"{lost:,} of {len(moved):,} elements that moved in float32 are what they were, once cast back"
            self._pending.append((known, line, why))

    def _moved(self, call: OperatorCall) -> None:
        known = next((each for each in self._wide if each.ref() is call.operands[0]), None)
        if known is not None and not call.results[0].requires_grad and len(self._wide) < 2 * _KEPT:
            self._wide.append(_Wide(call.results[0], known.kind, known.was, True))

    def iteration_end(self) -> None:
        pending, self._pending, self._wide = self._pending, [], []
        for known, line, why in pending:
            self._see(line, known.kind, why)

    def _lerp(self, call: OperatorCall, digits: int) -> str:
        weight = call.keywords.get("weight", call.arguments[2] if len(call.arguments) > 2 else None)
        if len(call.operands) < 2 or type(weight) is not float or not 0 < weight < 1:
            return ""
        average, goal = (few_numbers(self.facts.backend, each, _MOST) for each in call.operands[:2])
        if average is None or goal is None or len(average.flat) != len(goal.flat):
            return ""
        differ = lost = 0
        for here, there in zip(average.flat[:_COMPARED], goal.flat[:_COMPARED]):
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
    if len(given) != 1 or not 1 - 2.0**-digits / 2 < given[0] < 1:
        return ""
    if call.grad_mode or math.prod(call.operands[0].shape) < _LEAST:
        return ""
    return f"a factor of {given[0]:.6g} leaves every number of this type what it is: it has {digits} binary digits"
