"""A loss that is a mean over everything, beside one that is a sum over its axes: the sum is all that counts."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import axis_of, line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import PAIRED
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_CARRIES = frozenset({"add", "sub", "subtract", "rsub", "neg", "mul", "multiply", "scale", "assign", "div", "divide",
                      "truediv"})  # fmt: skip
_TIMES = frozenset({"mul", "multiply", "scale", "div", "divide", "truediv"})
_PLAIN = frozenset({0.5, 1.0, 2.0})  # factors of the formula itself
_FEATURES = 16  # that a mean is over, for each sample
_COLLAPSED = 0.1  # nats: what is learnt says nothing of the sample
_SETTLED = 16  # iterations
_KEPT = 4


@dataclass(frozen=True, slots=True)
class _Terms:
    """What a sum has of ``1 + v - m ** 2 - exp(v)``, or of ``s ** 2 + m ** 2 - 1 - 2 * log(s)``: numbers of the tensors
    that are there as they are, under exp, under log and squared, whatever number they are multiplied by; and what was
    done with it since: ``summed`` over the axes of a sample, a ``mean`` over the samples, a weight."""

    rows: int
    plain: frozenset[int] = frozenset()
    exponents: frozenset[int] = frozenset()
    logs: frozenset[int] = frozenset()
    squares: frozenset[int] = frozenset()
    summed: bool = False
    mean: bool = False
    weighted: bool = False

    @property
    def is_divergence(self) -> bool:
        """Of a normal distribution from a constant one: what two that are learnt differ by is squared in none."""
        by_variance = bool(self.squares) and not self.plain.isdisjoint(self.exponents)
        return by_variance or (not self.logs.isdisjoint(self.squares) and bool(self.squares - self.logs))

    def joined(self, other: _Terms) -> _Terms:
        """Of the sum of both."""
        return replace(
            self, plain=self.plain | other.plain, exponents=self.exponents | other.exponents,
            logs=self.logs | other.logs, squares=self.squares | other.squares,
            weighted=self.weighted or other.weighted,
        )  # fmt: skip


@dataclass(slots=True)
class _Both:
    """The two where they are added up."""

    line: SourceLine | None
    reconstruction: SourceLine | None
    divergence: SourceLine | None
    features: int
    rows: int  # that the divergence is summed over, too; else 1
    values: list[tuple[int, float]] = field(default_factory=list)  # the last ones
    odd: bool = False  # it had a weight, or was below 0: no such divergence


@detector("loss-input")
class MeanBesideSum(Detector):
    """An autoencoder whose reconstruction is a mean over samples and features, and whose Kullback-Leibler divergence
    (by the logarithm of the variance, by the deviation, by distributions) is summed over the axes of the code, or over
    the samples, too, added with no weight: the divergence counts as many times more as there are features, and the code
    comes to say nothing.

    Evidence: over how many features the mean is; the divergence in the iterations that were looked at, which goes to 0.
    Mistaken for: a divergence from a distribution that is learnt, one that has a weight at any time, other formulas
    (Poisson, policies, kernels), and one that is not below 0.1 in the last two looks: not told.
    Cost: in sampled iterations a look at each operator's name.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._terms: Marks[_Terms] = Marks()
        self._means: Marks[int] = Marks()
        self._each: Marks[int] = Marks()  # losses of each feature, no mean yet
        self._roots: Marks[int] = Marks()  # numbers of tensors: ids are those of others once they are gone
        self._apart: Marks[None] = Marks()  # of two that are learnt, or from one that is
        self._count = itertools.count()
        self._both: dict[SourceLine | None, _Both] = {}

    def applied(self) -> bool:
        return bool(self._both)

    def iteration_end(self) -> None:
        self._terms, self._means, self._each = Marks(), Marks(), Marks()  # of one iteration
        self._roots, self._apart = Marks(), Marks()

    def composite(self, call: OperatorCall) -> None:
        if plain(call.name) in PAIRED:
            self._mean_of(call)

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.results or not call.operands or not call.grad_mode:
            return
        name, source, result = plain(call.name), call.operands[0], call.results[0]
        if name in PAIRED:
            self._mean_of(call)
        elif not result.requires_grad or (
            name in ("add", "sub", "subtract") and len(call.operands) == 2 and self._meet(call, name != "add")
        ):
            return
        elif len(shape(source)) == 2 and (name in ("exp", "log") or _is_square(call, name)):
            self._terms.put(result, self._made(name, source), name, line_of(call.lines))
        elif name in ("sum", "mean", "mean_all"):
            self._reduce(call, name.removesuffix("_all"))
        elif name in _CARRIES:
            self._carry(call, name)

    def _made(self, name: str, source: Any) -> _Terms:
        rows, at = shape(source)[0], frozenset({self._root(source)})
        if name == "exp":
            return _Terms(rows, exponents=at)
        if name == "log":
            known = self._terms.of(source)
            return _Terms(rows, logs=at | (known.what.squares if known is not None else frozenset()))
        return _Terms(rows, squares=at if self._apart.of(source) is None else frozenset())

    def _root(self, value: Any) -> int:
        known = self._roots.of(value)
        if known is not None:
            return known.what
        number = next(self._count)
        self._roots.put(value, number, "", None)
        return number

    def _mean_of(self, call: OperatorCall) -> None:
        given = [*call.arguments, *call.keywords.values()]
        sizes = shape(call.operands[0]) if call.operands else []
        features = math.prod(sizes[1:])
        if not call.results or features < _FEATURES or len(sizes) < 2:
            return
        if shape(call.results[0]) == sizes:
            self._each.put(call.results[0], features, call.name, line_of(call.lines))
        elif not shape(call.results[0]) and not any(isinstance(each, str) and each != "mean" for each in given):
            self._means.put(call.results[0], features, call.name, line_of(call.lines))

    def _carry(self, call: OperatorCall, name: str) -> None:
        """Sums and products with numbers."""
        if self._is_apart(call, name):
            self._apart.put(call.results[0], None, name, None)
        known = [self._terms.of(each) for each in call.operands]
        whats = [each.what for each in known if each is not None]
        if name in _TIMES and (not whats or len(whats) > 1):
            if not whats and len(call.operands) == 1 and len(shape(call.results[0])) == 2:
                self._roots.put(call.results[0], self._root(call.operands[0]), name, None)
            return  # a product of two of them is no term of the formula: (y - m) ** 2 / s ** 2
        if not whats:
            self._carry_mean(call, name)
            if len(shape(call.results[0])) != 2:
                return
            whats = [_Terms(shape(call.results[0])[0])]
        what = whats[0]
        for other in whats[1:]:
            what = what.joined(other)
        beside = [each for each, mark in zip(call.operands, known) if mark is None]
        if name in _TIMES:
            numbers = [abs(float(each)) for each in call.arguments[1:] if type(each) in (int, float)]
            by = numbers[0] if numbers else 1.0
            if "div" in name and by == what.rows and what.summed and not what.mean:
                what = replace(what, mean=True)
            elif beside or by not in _PLAIN:
                what = replace(what, weighted=True)
        else:
            linear = frozenset(self._root(each) for each in beside if each.requires_grad)
            what = replace(what, plain=what.plain | linear)
        self._terms.put(call.results[0], what, call.name, line_of(call.lines))

    def _is_apart(self, call: OperatorCall, name: str) -> bool:
        """Whether it is a difference or a quotient whose second part is learnt."""
        learnt = len(call.operands) == 2 and call.operands[1].requires_grad
        return (learnt and (name in ("sub", "subtract") or "div" in name)) or (
            "div" in name and self._apart.of(call.operands[0]) is not None
        )

    def _carry_mean(self, call: OperatorCall, name: str) -> None:
        """``loss = loss + recon``: what is added beside it does not matter."""
        for each in call.operands if name == "add" and not shape(call.results[0]) else ():
            if (mean := self._means.of(each)) is not None:
                self._means.put(call.results[0], mean.what, mean.name, mean.line)

    def _reduce(self, call: OperatorCall, name: str) -> None:
        known, sizes = self._terms.of(call.operands[0]), shape(call.operands[0])
        alone = known is not None and known.what == _Terms(known.what.rows, squares=known.what.squares)
        each = alone or self._each.of(call.operands[0]) is not None
        if each and name == "mean" and not shape(call.results[0]) and math.prod(sizes[1:]) >= _FEATURES:
            self._means.put(call.results[0], math.prod(sizes[1:]), name, line_of(call.lines))  # of squares, by hand
            return
        what = None if known is None or not known.what.is_divergence else _reduced(known.what, call, name)
        if what is not None:
            self._terms.put(call.results[0], what, name, line_of(call.lines))

    def _meet(self, call: OperatorCall, minus: bool) -> bool:
        for one, other in (call.operands, call.operands[::-1])[: 1 if minus else 2]:
            mean, terms = self._means.of(one), self._terms.of(other)
            if mean is None or terms is None or not (terms.what.is_divergence and terms.what.summed) or shape(other):
                continue
            line, rows = line_of(call.lines), 1 if terms.what.mean else terms.what.rows
            both = self._both.setdefault(line, _Both(line, mean.line, terms.line, mean.what, rows))
            read = few_numbers(self.facts.backend, other, 1)
            value = 0.0 if read is None else (-read.flat[0] if minus else read.flat[0]) / rows
            if read is None or terms.what.weighted or value < -1e-3:
                both.odd = True
            else:
                both.values = [*both.values[1 - _KEPT :], (self.facts.iteration + 1, abs(value))]
            return True
        return False

    def end(self) -> None:
        for both in self._both.values():
            last = [value for at, value in both.values[-2:] if at >= _SETTLED]
            if not both.odd and len(last) == 2 and max(last) < _COLLAPSED:
                self._tell(both)

    def _tell(self, both: _Both) -> None:
        facts, value, times = self.facts, both.values[-1][1], both.features * both.rows
        shown = ", ".join(f"{number:.3g} in iteration {at}" for at, number in both.values)
        samples = f" and {both.rows:,} samples" if both.rows > 1 else ""
        evidence = [
            f"the reconstruction ({place(both.reconstruction)}) is a mean over {both.features:,} features of each "
            f"sample, the divergence ({place(both.divergence)}) a sum over the axes of the code{samples}",
            f"the divergence{' of a sample' if samples else ''} is {shown}",
        ]
        facts.tell(
            Finding(
                0, "loss-input", "warning", 0.85,
                f"{place(both.line)} adds a mean over {both.features:,} features to a divergence that is summed over "
                f"the code{samples}: it counts {times:,} times what it is to, and went to {value:.2g}; sum the "
                "reconstruction over the features of a sample, too",
                None, None, None, both.line, facts.cause(both.reconstruction), evidence,
                [f"b {place(both.reconstruction)}", "info node"],
            )
        )  # fmt: skip


def _is_square(call: OperatorCall, name: str) -> bool:
    if name in ("mul", "multiply"):
        return len(call.operands) == 2 and call.operands[0] is call.operands[1]
    return name == "square" or (name == "pow" and len(call.arguments) > 1 and call.arguments[1] in (2, 2.0))


def _reduced(what: _Terms, call: OperatorCall, name: str) -> _Terms | None:
    """A divergence of [samples, axes of the code] behind a sum or a mean; None where that is over the wrong axis, or a
    mean over the code, too."""
    two, whole, axis = len(shape(call.operands[0])) == 2, not shape(call.results[0]), axis_of(call)
    if not two:  # of the samples' divergences, or of the means of the axes
        if name == "mean" and not what.summed:
            return None
        return replace(what, summed=True, mean=what.mean or name == "mean")
    if name == "sum":
        return replace(what, summed=True) if whole or axis in (1, -1) else None
    return replace(what, mean=True) if not whole and axis in (0, -2) else None
