"""Whole numbers that are cast to a type too coarse for them, before a sine or a cosine tells them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding

_CASTS = frozenset({"to", "cast", "astype", "bfloat16", "half", "type"})
_HALF = frozenset({"bfloat16", "float16"})
_KEEPS = frozenset({"getitem", "unsqueeze", "mul", "multiply", "div", "divide", "truediv", "reshape", "view", "scale"})
_WAVES = frozenset({"sin", "cos", "remainder", "fmod"})
_MOST = 1 << 14
_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class _Coarse:
    changed: int
    seen: int
    left: int  # of so many different numbers
    different: int
    high: float
    kind: str


@detector("rounded-gradient")
class CoarsePhases(Detector):
    """Times or positions (whole numbers up to some thousands, as floats) are cast to bfloat16 or float16, with the rest
    of a batch, and a sine or cosine is taken of them after that: in bfloat16 whole numbers above 256 lie 2 apart, above
    4,096 they lie 32 apart, and what is finer is lost.

    Evidence: how many of the numbers the cast changed, how many different ones are left.
    Mistaken for: numbers that the type holds, and what no sine or cosine takes: not told.
    Cost: in sampled iterations a look at casts to these types.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._coarse: Marks[_Coarse] = Marks()
        self._told: set[Any] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands:
            return
        name, source, result = plain(call.name), call.operands[0], call.results[0]
        if name in _CASTS and str(result.dtype).rpartition(".")[2] in _HALF and "float32" in str(source.dtype):
            found = self._cast(source, result)
            if found is not None:
                self._coarse.put(result, found, call.name, line_of(call.lines))
                return
        known = next((each for one in call.operands if (each := self._coarse.of(one)) is not None), None)
        if known is None:
            return
        if name in _WAVES:
            self._tell(call, known)
        elif name in _KEEPS:
            self._coarse.put(result, known.what, known.name, known.line)

    def _cast(self, source: Any, result: Any) -> _Coarse | None:
        if source.requires_grad:
            return None
        before, after = (few_numbers(self.facts.backend, each, _MOST) for each in (source, result))
        if before is None or after is None or len(before.flat) < 2:
            return None
        wide, narrow = before.flat, after.flat
        if any(each != each or each - each != 0 or each != int(each) for each in wide):
            return None
        changed = sum(one != other for one, other in zip(wide, narrow))
        different, left = len(set(wide)), len(set(narrow))
        if changed < _SHARE * len(wide) or left >= different:
            return None
        kind = str(result.dtype).rpartition(".")[2]
        return _Coarse(changed, len(wide), left, different, max(map(abs, wide)), kind)

    def _tell(self, call: OperatorCall, known: Marked[_Coarse]) -> None:
        if known.line in self._told:
            return
        self._told.add(known.line)
        facts, line, what = self.facts, line_of(call.lines), known.what
        facts.tell(
            Finding(
                0, "rounded-gradient", "warning", 0.88,
                f"{place(known.line)} casts whole numbers up to {what.high:,.0f} to {what.kind}, which changes "
                f"{what.changed:,} of {what.seen:,} of them, and {plain(call.name)} at {place(line)} is taken of what "
                "is left",
                None, None, facts.iteration + 1, line, facts.cause(known.line),
                [
                    f"of {what.different:,} different numbers {what.left:,} are left",
                    "compute the angle in float32, and cast the sine and cosine",
                ],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip
