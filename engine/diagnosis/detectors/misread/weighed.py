"""A loss that is a mean over everything, beside one that is a sum over its axes: the sum is all that counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import PAIRED
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_SUMS = frozenset({"add", "sub", "subtract", "neg", "square", "pow", "mul", "multiply", "scale", "assign"})
_TIMES = frozenset({"mul", "multiply", "scale", "div", "divide", "truediv"})
_PLAIN = frozenset({0.5, 1.0, 2.0})  # factors of the formula itself
_FEATURES = 16  # that a mean is over, for each sample
_COLLAPSED = 0.1  # nats: what is learnt says nothing of the sample
_SETTLED = 16  # iterations


@dataclass(frozen=True, slots=True)
class _Divergence:
    """Of a normal distribution, on its way: ``summed`` over the axes of a sample, ``mean`` over the samples."""

    rows: int
    summed: bool = False
    mean: bool = False


@dataclass(slots=True)
class _Both:
    """The two where they are added up."""

    line: SourceLine | None
    reconstruction: SourceLine | None
    divergence: SourceLine | None
    features: int
    values: list[tuple[int, float]]


@detector("loss-input")
class MeanBesideSum(Detector):
    """An autoencoder whose reconstruction is a mean over samples and features, and whose divergence (of exp(logvar)) is
    summed over the axes of a sample, added with no weight: the divergence counts as many times more as there are
    features, and the code comes to say nothing.

    Evidence: over how many features the mean is; the divergence in the iterations that were looked at, which goes to 0.
    Mistaken for: a divergence with a weight of its own (not told), and one that stays above 0.1 (a note).
    Cost: in sampled iterations a look at each operator's name.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._parts: Marks[_Divergence] = Marks()
        self._means: Marks[int] = Marks()
        self._both: dict[SourceLine | None, _Both] = {}

    def applied(self) -> bool:
        return bool(self._both)

    def composite(self, call: OperatorCall) -> None:
        if plain(call.name) in PAIRED:
            self._mean_of(call)

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.results or not call.operands or not call.grad_mode:
            return
        name, source = plain(call.name), call.operands[0]
        if name == "exp" and source.requires_grad and len(shape(source)) == 2:
            self._parts.put(call.results[0], _Divergence(shape(source)[0]), name, line_of(call.lines))
        elif name in PAIRED:
            self._mean_of(call)
        elif len(call.operands) == 2 and name == "add" and self._meet(call):
            return
        else:
            self._follow(call, name)

    def _mean_of(self, call: OperatorCall) -> None:
        given = [*call.arguments, *call.keywords.values()]
        sizes = shape(call.operands[0]) if call.operands else []
        features = math.prod(sizes[1:])
        if not call.results or shape(call.results[0]) or features < _FEATURES or len(sizes) < 2:
            return
        if not any(isinstance(each, str) and each != "mean" for each in given):
            self._means.put(call.results[0], features, call.name, line_of(call.lines))

    def _follow(self, call: OperatorCall, name: str) -> None:
        known = next((each for one in call.operands if (each := self._parts.of(one)) is not None), None)
        if known is None or not call.results[0].requires_grad:
            return
        result, what = call.results[0], known.what
        if name in _TIMES and len(call.operands) == 1:
            numbers = [abs(float(each)) for each in call.arguments[1:] if type(each) in (int, float)]
            if name in ("div", "divide", "truediv") and numbers == [what.rows] and what.summed:
                what = replace(what, mean=True)
            elif any(each not in _PLAIN for each in numbers if each):
                return
        elif name == "sum":
            what = replace(what, summed=True)
        elif name == "mean":
            if not what.summed:
                return
            what = replace(what, mean=True)
        elif name not in _SUMS:
            return
        self._parts.put(result, what, known.name, line_of(call.lines))

    def _meet(self, call: OperatorCall) -> bool:
        for one, other in (call.operands, call.operands[::-1]):
            mean, divergence = self._means.of(one), self._parts.of(other)
            if mean is None or divergence is None or not (divergence.what.summed and divergence.what.mean):
                continue
            read = few_numbers(self.facts.backend, other, 1)
            if read is not None and read.flat:
                line = line_of(call.lines)
                both = self._both.setdefault(line, _Both(line, mean.line, divergence.line, mean.what, []))
                both.values.append((self.facts.iteration + 1, read.flat[0]))
            return True
        return False

    def end(self) -> None:
        for both in self._both.values():
            self._tell(both)

    def _tell(self, both: _Both) -> None:
        facts, (last, value) = self.facts, both.values[-1]
        collapsed = last >= _SETTLED and abs(value) < _COLLAPSED
        shown = ", ".join(f"{number:.3g} in iteration {at}" for at, number in both.values[-4:])
        evidence = [
            f"the reconstruction ({place(both.reconstruction)}) is a mean over {both.features:,} features of each "
            f"sample, the divergence ({place(both.divergence)}) a sum over the axes of the code",
            f"the divergence is {shown}",
        ]
        if not collapsed:
            evidence.append("whether a divergence that weighs so much is meant decides it")
        facts.tell(
            Finding(
                0, "loss-input", "warning", 0.85 if collapsed else 0.4,
                f"{place(both.line)} adds a mean over {both.features:,} features to a sum: the divergence counts "
                f"{both.features:,} times what it does in the bound"
                + (f", and went to {value:.2g}" if collapsed else "")
                + "; sum the reconstruction over the features of a sample, too",
                None, None, None, both.line, facts.cause(both.reconstruction), evidence,
                [f"b {place(both.reconstruction)}", "info node"],
            )
        )  # fmt: skip
