"""Attentions that give all weight to one place before they have learnt anything: scores that are too large."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_MAKES = frozenset({"matmul", "bmm", "einsum", "mul", "multiply", "div", "divide", "truediv", "scale", "baddbmm"})
_MASKS = frozenset({"masked_fill", "where", "add", "sub", "subtract", "to", "cast", "float", "reshape", "view"})
_FIRST = 3  # iterations: nothing is learnt yet
_LEAST = 4  # places that a row is over
_PEAK = 0.99
_SHARE = 0.5  # of the rows
_MOST = 1 << 16  # elements that are read
_HEAT = re.compile(r"beta|temp|tau|scale|sharp|gamma", re.I)  # names of what makes it sharp on purpose


@dataclass(slots=True)
class _Scores:
    """Softmaxes of one line."""

    made: SourceLine | None
    by: str
    masked: bool
    shares: dict[int, list[float]] = field(default_factory=dict)  # by iteration, of each call
    last: int = 0


@detector("saturated-units")
class PeakedAttention(Detector):
    """A softmax over scores (``q @ k.T``) that has all weight of most rows on one place from the first iteration: its
    derivative is 0 there, and queries and keys learn little. Mostly the scores are not divided by the root of the size
    of a head, or are multiplied by it.

    Evidence: of how many rows the largest weight is above 0.99, in the first iterations and in the last that was looked
    at; the size of the scores.
    Mistaken for: an attention that learns to look at one place, softmaxes of classes (two axes), rows that a mask
    leaves one place of, unless these are most of them: not told.
    Cost: in sampled iterations a look at each operator's name, and up to 65,536 numbers of a softmax.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._made: Marks[bool] = Marks()  # whether something may have masked it since
        self._lines: dict[SourceLine | None, _Scores] = {}

    def applied(self) -> bool:
        return bool(self._lines)

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.results or not call.operands or not call.grad_mode:
            return
        name, result = plain(call.name), call.results[0]
        if name == "softmax":
            self._look(call, result)
        elif name in _MAKES and result.requires_grad and len(shape(result)) > 2:
            self._made.put(result, False, call.name, line_of(call.lines))
        elif name in _MASKS:
            known = next((each for one in call.operands if (each := self._made.of(one)) is not None), None)
            if known is not None:
                self._made.put(result, known.what or name in ("masked_fill", "where", "add"), known.name, known.line)

    def _look(self, call: OperatorCall, result: Any) -> None:
        sizes, axis, line = shape(result), axis_of(call), line_of(call.lines)
        if len(sizes) < 3 or sizes[-1] < _LEAST or axis not in (None, -1, len(sizes) - 1) or not result.requires_grad:
            return
        iteration, known = self.facts.iteration + 1, self._lines.get(line)
        if known is None:
            if iteration > _FIRST:
                return
            made = self._made.of(call.operands[0])
            if made is None:
                return  # distances: no attention's
            known = self._lines[line] = _Scores(made.line, made.name, made.what)
        while math.prod(shape(result)) > _MOST and len(shape(result)) > 1:
            result = result[0]
        read = numbers(self.facts.backend, result)
        if read is None or not read.flat or read.first_bad() is not None:
            return
        every = [read.flat[at : at + sizes[-1]] for at in range(0, len(read.flat), sizes[-1])]
        if known.masked:  # of one place that a mask leaves nothing is learnt
            every = [each for each in every if len(each) - each.count(0.0) > 1]
        rows = [max(each) for each in every]
        if not rows:
            return
        known.shares.setdefault(iteration, []).append(sum(each > _PEAK for each in rows) / len(rows))

    def iteration_end(self) -> None:
        self._made = Marks()

    def end(self) -> None:
        for line, known in self._lines.items():
            means = {at: sum(found) / len(found) for at, found in known.shares.items()}
            first = [share for at, share in means.items() if at <= _FIRST]
            later = [share for at, share in means.items() if at > _FIRST]
            if first and later and min(first) >= _SHARE and later[-1] >= _SHARE:
                self._tell(line, known, means)

    def _tell(self, line: SourceLine | None, known: _Scores, means: dict[int, float]) -> None:
        facts = self.facts
        shown = ", ".join(f"{share:.0%} in iteration {at}" for at, share in list(means.items())[:2])
        last = max(means)
        first = means[min(means)]
        heated = known.made is not None and _HEAT.search(facts.text_of(known.made)) is not None
        facts.tell(
            Finding(
                0, "saturated-units", "warning", 0.45 if heated else 0.82,
                f"the softmax at {place(line)} has all weight of {first:.0%} of its rows on one place from the start, "
                f"where its derivative is 0: the scores that {known.by} at {place(known.made)} makes are too large; "
                "divide them by the root of the size of a head",
                None, None, None, line, facts.cause(known.made),
                [
                    f"rows whose largest weight is above {_PEAK}: {shown}, {means[last]:.0%} in iteration {last}",
                    f"the scores are made at {place(known.made)}: "
                    f"{facts.text_of(known.made) if known.made is not None else ''}",
                    *(["whether a softmax so sharp is meant decides it"] if heated else []),
                ],
                [f"b {place(line)} after", "p norm(grad_outputs[0]), norm(grad_inputs[0])"],
            )
        )  # fmt: skip
