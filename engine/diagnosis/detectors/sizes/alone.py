"""Normalisations over one element: it is its own mean, and nothing of it is left."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine, TensorStats

_NORMS = frozenset({"group_norm", "layer_norm"})  # the others raise for a single value
_MINUS = frozenset({"sub", "subtract"})
_ITERATIONS = 2  # that a line normalises nothing but single elements in, until it is told; fewer at the end
_NEAR = 1e-4  # of the largest input: what is left of it, by rounding, is less
_MOST = 1 << 16  # numbers of a result that are compared


@dataclass(slots=True)
class _Line:
    """What a line normalises: ``over`` how many elements each time, at the least and at the most."""

    what: str
    sizes: list[int]
    over: str  # what each of them is: "group of a sample"
    iterations: set[int]
    spread: tuple[float, float]  # smallest and largest input
    left: tuple[float, float]  # and of what is left of them
    widest: int = 1


@detector("zero-gradient")
class NormalizedAlone(Detector):
    """A GroupNorm with as many groups as channels behind a pooling to 1x1, a LayerNorm over an axis of one element, a
    difference to the mean over such an axis: each element is its own mean, the result is 0 (with a bias: the bias)
    whatever comes in, and no gradient comes back through it.

    Evidence: the sizes of the input and of what is normalised together, and the smallest and the largest number of the
    input and of the result, which is the same for all samples.
    Mistaken for: a line that normalises more than one element at other times (a pyramid whose last level is 1x1, sets
    that grow: not told, or taken back), inputs that nothing before is trained for (not told).
    Cost: in sampled iterations a look at each operator's name, and at the shapes of normalisations; once the numbers of
    such a line.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._lines: dict[SourceLine, _Line] = {}
        self._means: Marks[Any] = Marks()  # the mean over one element -> sizes of what it was taken of
        self._told: dict[SourceLine, int] = {}

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or not call.results or not call.operands or not call.grad_mode or call.in_backward:
            return
        name = plain(call.name)
        if name in _NORMS:
            together = self._together(name, call)
            if together is not None:
                self._look(name, call, *together)
        elif name == "mean":
            self._mean(call)
        elif name in _MINUS and len(call.operands) == 2:
            known = self._means.of(call.operands[1])
            if known is not None and known.what() is call.operands[0]:
                self._look(f"{name} of the mean", call, 1, known.name)
            elif line_of(call.lines) in self._lines:
                self._look(name, call, 2, "")

    def _together(self, name: str, call: OperatorCall) -> tuple[int, str] | None:
        """How many elements are normalised together, and what of the input that is."""
        sizes = shape(call.operands[0])
        if name == "layer_norm":
            given = call.keywords.get("normalized_shape", call.arguments[1] if len(call.arguments) > 1 else None)
            ints = [each for each in call.arguments[1:] if type(each) is int]
            if self.facts.backend.name == "paddle":  # (x, scale, bias, epsilon, the axis where it begins)
                axes = sizes[ints[-1] :] if ints else []
            else:
                axes = [given] if isinstance(given, int) else list(given or ())
            return (
                (math.prod(axes), f"the last {len(axes)} axes" if len(axes) > 1 else "the last axis") if axes else None
            )
        if len(sizes) < 2:
            return None
        groups = call.keywords.get("num_groups", next((each for each in call.arguments[1:] if type(each) is int), 0))
        return (math.prod(sizes[1:]) // groups, f"each of {groups} groups of a sample") if groups else None

    def _mean(self, call: OperatorCall) -> None:
        """Over an axis of one element, which is then still there: what it is taken from is of the same shape."""
        operand, axis = call.operands[0], axis_of(call)
        sizes = shape(operand)
        if axis is not None and sizes and sizes[axis % len(sizes)] == 1 and shape(call.results[0]) == sizes:
            self._means.put(call.results[0], weakref.ref(operand), f"axis {axis % len(sizes)}", line_of(call.lines))

    def _look(self, what: str, call: OperatorCall, together: int, over: str) -> None:
        line, operand, facts = line_of(call.lines), call.operands[0], self.facts
        if line is None or not facts.backend.meta(operand).requires_grad:
            return
        known = self._lines.get(line)
        if known is not None:
            known.widest = max(known.widest, together)
            if together == 1:
                known.iterations.add(facts.iteration)
            elif line in self._told:
                facts.take_back(self._told.pop(line))
            return
        made = _Line(what, shape(operand), over, {facts.iteration}, (0, 0), (0, 0), together)
        if together == 1:
            read = [values.stats(facts.backend, each) for each in (operand, call.results[0])]
            if read[0] is None or read[1] is None or not self._is_constant(call.results[0], read[0]):
                return
            made.spread, made.left = (read[0].min, read[0].max), (read[1].min, read[1].max)
        self._lines[line] = made

    def _is_constant(self, result: Any, given: TensorStats) -> bool:
        """Whether it is the same for each sample, but for rounding, though what was given differs."""
        found, sizes = values.numbers(self.facts.backend, result), shape(result)
        if found is None or len(sizes) < 2 or sizes[0] < 2 or len(found.flat) > _MOST or not given.min < given.max:
            return False
        width = len(found.flat) // sizes[0]
        limit = _NEAR * max(abs(given.min), abs(given.max))
        return all(abs(each - found.flat[at % width]) <= limit for at, each in enumerate(found.flat))

    def iteration_end(self) -> None:
        self._tell_those_of(_ITERATIONS)

    def end(self) -> None:
        self._tell_those_of(1)

    def _tell_those_of(self, iterations: int) -> None:
        for line, known in self._lines.items():
            if line not in self._told and known.widest == 1 and len(known.iterations) >= iterations:
                self._told[line] = self._tell(line, known)

    def _tell(self, line: SourceLine, known: _Line) -> int:
        (low, high), (least, most) = known.spread, known.left
        left = "0" if max(abs(least), abs(most)) <= _NEAR * max(abs(low), abs(high)) else "its bias"
        message = (
            f"{known.what} at {place(line)} normalises single elements: {known.over} of {known.sizes} is one number, "
            f"which is its own mean: the result is {left} whatever comes in, and no gradient comes back through it"
        )
        evidence = [
            f"the input was {values.plain(low)} to {values.plain(high)}, the result {values.plain(least)} to "
            f"{values.plain(most)}, the same for all samples",
            "the derivative of x - mean(x) is 0 where the mean is over x alone: what flows out to the input is 0, or "
            "rounding errors",
        ]
        return self.facts.tell(
            Finding(
                0, "zero-gradient", "warning", 0.9, message, iteration=self.facts.iteration + 1, forward=line,
                cause=self.facts.cause(line), evidence=evidence, next=[f"b {place(line)}", "info node"],
            )
        )  # fmt: skip
