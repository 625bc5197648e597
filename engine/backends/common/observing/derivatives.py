"""The numeric check of a custom function's backward: along random directions, with two step sizes, in double where the
function can. What runs an operator is a framework's."""

from __future__ import annotations

import abc
import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import FunctionCall, Probe, SlotCheck
from adbg.engine.outside import own

_LARGEST = 200_000  # elements of all arguments together
_FILLED = 4_000_000  # of larger ones it is only looked whether all memory is written; as many in all are kept
_DIRECTIONS = 3
_FINER = 10  # the next step, where two steps differ: of 8,000 elements at a threshold a step of 1e-5 moves some across
_STEADY = 2  # of these along which both steps say the same: one step may cross a kink, as that of a threshold
_COORDINATES = 12
_DIFFERING = 3  # of these; one is at a kink, as each of two elements that a sort finds next to each other, seldom two
_FACTOR = -3.0  # of the gradient given: neither its sign nor its size may matter
_LEAST_DIFFERENCE = 1e-6
# (steps, relative tolerance of the comparison, of the two steps with each other, the least that counts)
_DOUBLE = ((1e-5, 2e-6), 1e-4, 1e-4, 1e-8)
_SINGLE = ((2e-2, 1e-2), 8e-2, 4e-2, 2e-3)


@dataclass(slots=True)
class Sample:
    """Copies of the arguments of one call; ``needed``: places of those that a gradient is needed of; ``others``: of
    those that could have one."""

    arguments: list[Any]
    keywords: dict[str, Any]
    needed: list[int]
    large: bool = False
    others: Sequence[int] = ()


class DerivativeProbe(Probe):
    """The part that all frameworks share."""

    def __init__(self, apply: Callable[..., Any]) -> None:
        self.apply = apply  # (function, *arguments): the framework's own, which no tap sees
        self.running = False
        self._room = _FILLED

    # ---- a framework's

    @abc.abstractmethod
    def copied(self, value: Any) -> Any: ...

    @abc.abstractmethod
    def is_tensor(self, value: Any) -> bool: ...

    @abc.abstractmethod
    def is_float(self, value: Any) -> bool: ...

    @abc.abstractmethod
    def needs_gradient(self, value: Any) -> bool: ...

    @abc.abstractmethod
    def size(self, value: Any) -> int: ...

    @abc.abstractmethod
    def shape(self, value: Any) -> tuple[int, ...]: ...

    @abc.abstractmethod
    def widened(self, value: Any) -> Any:
        """In double."""

    @abc.abstractmethod
    def is_double(self, value: Any) -> bool: ...

    @abc.abstractmethod
    def random_like(self, value: Any, seed: int) -> Any: ...

    @abc.abstractmethod
    def unit_like(self, value: Any, place: int) -> Any:
        """Zeros and a one."""

    @abc.abstractmethod
    def moved(self, value: Any, direction: Any, by: float) -> Any: ...

    @abc.abstractmethod
    def dot(self, one: Any, other: Any) -> float: ...

    @abc.abstractmethod
    def equal(self, one: Any, other: Any) -> bool:
        """The same shape and the same values."""

    @abc.abstractmethod
    def finite(self, value: Any) -> bool: ...

    @abc.abstractmethod
    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Random numbers as they were afterwards, no adbg tap, no warning, grad mode on."""

    @abc.abstractmethod
    def repeatable(self) -> contextlib.AbstractContextManager[None]:
        """The same random numbers each time."""

    @abc.abstractmethod
    def filled(self, value: float) -> contextlib.AbstractContextManager[None]:
        """Fresh memory has that value."""

    @abc.abstractmethod
    def gradients(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], needed: list[int], seed: int,
        factor: float = 1.0,
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        """(outputs, gradient of the weighted outputs by each needed value or None); ``factor`` times the weights."""

    @abc.abstractmethod
    def again(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], needed: list[int], seed: int,
        directions: Sequence[Any],
    ) -> list[Any]:  # fmt: skip
        """The gradient, by each needed value or None, of the sum of what ``gradients`` gives along ``directions``: what
        the graph of the function's backward says."""

    # ---- a sample

    def sample(self, call: FunctionCall) -> Any:
        needed: list[int] = []
        others: list[int] = []
        size = 0
        for place, value in enumerate(call.arguments):
            if self.is_tensor(value):
                size += self.size(value)
                if self.is_float(value):
                    (needed if self.needs_gradient(value) else others).append(place)
            elif callable(value) or not _is_plain(value):
                return None
        large = size > _LARGEST
        if not needed or (large and size > self._room) or any(not _is_plain(each) for each in call.keywords.values()):
            return None
        if large:
            self._room -= size
        arguments = [self.copied(each) if self.is_tensor(each) else each for each in call.arguments]
        return Sample(arguments, dict(call.keywords), needed, large, others)

    # ---- the check

    def check(self, function: type, sample: Any) -> Sequence[SlotCheck]:
        with self.quiet():
            if sample.large:
                return self._check_memory(function, sample)
            try:
                return self._check(function, sample, True)
            except own(Exception):
                return self._check(function, sample, False)

    def _check(self, function: type, sample: Sample, double: bool) -> Sequence[SlotCheck]:
        def ready(value: Any) -> Any:
            return self.widened(value) if double and self.is_tensor(value) and self.is_float(value) else value

        values = [ready(each) for each in sample.arguments]

        run = self._runner(function, sample)
        outputs, gradients = self.gradients(run, values, sample.needed, 7)
        if double and not all(self.is_double(each) for each in outputs):
            raise TypeError("its forward does not stay in double")
        unwritten = self._unwritten(run, values, sample.needed)
        found = []
        for gradient, place in zip(gradients, sample.needed):
            figures = _DOUBLE if double else _SINGLE
            found.append(self._slot(run, values, place, outputs, gradient, place in unwritten, figures))
        if any(not each.agrees and not each.missing for each in found):
            again = self.gradients(run, values, sample.needed, 7, _FACTOR)[1]
            close = (_DOUBLE if double else _SINGLE)[1]
            lone = all(self.size(each) <= 1 for each in outputs)
            found = [
                self._with_response(replace(each, lone=lone), values[each.place], one, other, close)
                for each, one, other in zip(found, gradients, again)
            ]
            found += self._unasked(run, values, sample, _DOUBLE if double else _SINGLE)
        return found

    def check_again(self, function: type, sample: Any) -> Sequence[tuple[float, float]]:
        if sample.large:
            return []
        with self.quiet():
            return self._check_again(function, sample)

    def _check_again(self, function: type, sample: Sample) -> list[tuple[float, float]]:
        """Of all needed arguments together: along one direction the change of the gradient along another one. In double
        alone: in single, differences of gradients are noise."""
        values = [
            self.widened(each) if self.is_tensor(each) and self.is_float(each) else each for each in sample.arguments
        ]
        needed, run = sample.needed, self._runner(function, sample)
        if not all(self.is_double(each) for each in run(values)):
            return []
        steps, _, steady, least = _DOUBLE
        size = max(1.0, *(self._size_of(values[place]) for place in needed))

        def slope(by: float, along: Sequence[Any], directions: Sequence[Any]) -> float:
            given = list(values)
            for place, direction in zip(needed, along):
                given[place] = self.moved(values[place], direction, by)
            found = self.gradients(run, given, needed, 7)[1]
            return math.fsum(self.dot(one, other) for one, other in zip(found, directions) if one is not None)

        pairs = []
        for seed in range(_DIRECTIONS):
            along, directions = (
                [self.random_like(values[place], first + seed + 10 * place) for place in needed] for first in (200, 500)
            )
            first, second = [
                (slope(step * size, along, directions) - slope(-step * size, along, directions)) / (2 * step * size)
                for step in steps
            ]
            if abs(first - second) <= steady * max(abs(first), abs(second)) + least:
                found = self.again(run, values, needed, 7, directions)
                pairs.append((second, math.fsum(self.dot(g, v) for g, v in zip(found, along) if g is not None)))
        return pairs if len(pairs) >= _STEADY else []

    def _size_of(self, value: Any) -> float:
        """Of its elements: 1e14 and 1e-6 more are the same number."""
        return math.sqrt(self.dot(value, value) / max(1, self.size(value)))

    def _unasked(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], sample: Sample,
        figures: tuple[tuple[float, float], float, float, float],
    ) -> list[SlotCheck]:  # fmt: skip
        """What the function would give those that need no gradient: what is wrong of all is wrong where they are
        one."""
        try:
            needed = [*sample.needed, *sample.others]
            outputs, gradients = self.gradients(run, values, needed, 7)
            return [
                replace(self._slot(run, values, place, outputs, gradient, False, figures), asked=False)
                for place, gradient in zip(needed, gradients) if place in sample.others and gradient is not None
            ]  # fmt: skip
        except own(Exception):  # it was never run for these
            return []

    def _with_response(self, check: SlotCheck, value: Any, first: Any, second: Any, close: float) -> SlotCheck:
        """``nonlinear``, where the gradient of ``_FACTOR`` times as much is not ``_FACTOR`` times the gradient: a
        derivative is linear in what it is given, and what clips gradients, or sorts some out, is not. ``constant``,
        where it is the same gradient: what is given is not used."""
        if first is None or second is None or self.shape(first) != self.shape(value):
            return check
        direction = self.random_like(value, 100)
        once, got = self.dot(first, direction), self.dot(second, direction)
        expected = _FACTOR * once
        nonlinear = abs(expected - got) > close * max(abs(expected), abs(got)) + _LEAST_DIFFERENCE
        # A single number that gets a constant may be a loss that the function hands through on purpose.
        constant = nonlinear and self.size(value) > 1 and abs(once - got) <= close * abs(once)
        return replace(check, nonlinear=nonlinear, constant=constant)

    def _runner(self, function: type, sample: Sample) -> Callable[[list[Any]], list[Any]]:
        def run(given: list[Any]) -> list[Any]:
            with self.repeatable():
                result = self.apply(function, *given, **sample.keywords)
            results = result if isinstance(result, (tuple, list)) else (result,)
            return [each for each in results if self.is_tensor(each) and self.is_float(each)]

        return run

    def _check_memory(self, function: type, sample: Sample) -> Sequence[SlotCheck]:
        """Of large arguments (an embedding's table) no derivative: that takes a forward for each direction and step."""
        unwritten = self._unwritten(self._runner(function, sample), sample.arguments, sample.needed)
        return [
            SlotCheck(place, (), True, False, False, False, False, True, "its own precision") for place in unwritten
        ]

    def _unwritten(self, run: Callable[[list[Any]], list[Any]], values: list[Any], needed: list[int]) -> set[int]:
        """Places whose gradient is finite or not by what fresh memory has in it. What lies there without that may be
        anything, NaN too: it proves nothing."""
        bad: list[set[int]] = []
        for value in (math.nan, 0.0):
            with self.filled(value):
                gradients = self.gradients(run, values, needed, 7)[1]
            bad.append({place for place, each in zip(needed, gradients) if each is not None and not self.finite(each)})
            if not bad[0]:
                break
        return bad[0].difference(*bad[1:]) if bad[0] else set()

    def _slot(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], place: int, outputs: list[Any], gradient: Any,
        unwritten: bool, figures: tuple[tuple[float, float], float, float, float],
    ) -> SlotCheck:  # fmt: skip
        steps, close, steady, least = figures
        value = values[place]
        size = max(1.0, self._size_of(value))
        steps = (steps[0] * size, steps[1] * size)
        precision = "f64" if figures is _DOUBLE else "its own precision"
        if gradient is not None and self.shape(gradient) != self.shape(value):
            shapes = (self.shape(gradient), self.shape(value))
            return SlotCheck(place, (), False, False, False, False, False, False, precision, shapes)
        agrees, steadies = True, 0
        pairs = []
        for seed in range(_DIRECTIONS):
            direction = self.random_like(value, 100 + seed)
            first, second = [self._numeric(run, values, place, direction, step) for step in steps]
            analytic = self.dot(gradient, direction) if gradient is not None else 0.0
            if figures is _DOUBLE and abs(first - second) > steady * max(abs(first), abs(second)) + least:
                first, second = second, self._numeric(run, values, place, direction, steps[1] / _FINER)
            most = max(abs(first), abs(second))
            pairs.append((second, analytic))
            if abs(first - second) <= steady * most + least:
                steadies += 1
                agrees = agrees and abs(second - analytic) <= close * max(most, abs(analytic)) + least
        smooth = steadies >= _STEADY
        if not steadies:
            agrees = False
        if figures is _SINGLE and not (smooth and agrees) and gradient is not None:
            smooth = self._is_confirmed(run, values, place, gradient, (steps, *figures[1:]))
            agrees = agrees and not smooth
        identity = any(self.equal(each, value) for each in outputs)
        flat = (
            not agrees and gradient is not None and self._is_flat(run, values, place, gradient, (steps, *figures[1:]))
        )
        return SlotCheck(place, tuple(pairs), agrees, smooth, identity, flat, gradient is None, unwritten, precision)

    def _numeric(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], place: int, direction: Any, step: float
    ) -> float:
        sums = []
        for by in (step, -step):
            given = list(values)
            given[place] = self.moved(values[place], direction, by)
            sums.append(math.fsum(self.dot(out, self.random_like(out, 7 + n)) for n, out in enumerate(run(given))))
        return (sums[0] - sums[1]) / (2 * step)

    def _is_confirmed(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], place: int, gradient: Any,
        figures: tuple[tuple[float, float], float, float, float],
    ) -> bool:  # fmt: skip
        """A difference along random directions is no kink's. Steps of single precision are long: of 2,048 elements of a
        leaky ReLU some thirty cross its kink, by both steps much the same, and where the other terms cancelled that was
        9 per cent of the sum. Of single coordinates most are far from any kink, and along the gradient itself nothing
        cancels."""
        steps, close, steady, least = figures
        size, count = self._size_of(gradient), self.size(values[place])
        if not size or not math.isfinite(size):
            return True
        differ = 0
        for number in range(min(_COORDINATES, count)):
            unit = self.unit_like(values[place], number * count // min(_COORDINATES, count))
            # By three steps: of two, one and two units in the last place of a bfloat16 give the same by chance.
            found = [self._numeric(run, values, place, unit, step) for step in (2 * steps[0], *steps)]
            two, analytic = found[-1], self.dot(gradient, unit)
            if two and max(found) - min(found) <= steady * max(map(abs, found)):
                differ += abs(two - analytic) > close * max(abs(two), abs(analytic)) + least
        if differ >= min(count, _DIFFERING):
            return True
        # Shorter, too: a gradient of few elements moves each of them far, past the next largest where it is a maximum
        expected = self.dot(gradient, gradient) / size
        along = [
            self._numeric(run, values, place, gradient, step / size) / size for step in (*steps, steps[1] / _FINER)
        ]
        most = max(map(abs, along))
        return max(along) - min(along) <= steady * most + least and (
            abs(along[-1] - expected) > close * max(most, expected) + least
        )

    def _is_flat(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], place: int, gradient: Any,
        figures: tuple[tuple[float, float], float, float, float],
    ) -> bool:  # fmt: skip
        """Wherever single coordinates differ, the numeric derivative is zero."""
        steps, close, steady, least = figures
        size = self.size(values[place])
        differs = 0
        for number in range(min(_COORDINATES, size)):
            unit = self.unit_like(values[place], number * size // min(_COORDINATES, size))
            numeric = self._numeric(run, values, place, unit, steps[1])
            analytic = self.dot(gradient, unit)
            if abs(numeric - analytic) > close * max(abs(numeric), abs(analytic)) + least:
                # Of the mean of 2,048 elements a derivative is 5e-4, and the same by another step.
                if abs(numeric) > least or (
                    numeric
                    and abs(numeric - self._numeric(run, values, place, unit, steps[0])) <= steady * abs(numeric)
                ):
                    return False
                differs += 1
        return differs > 0


def _is_plain(value: Any, depth: int = 2) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(depth) and all(_is_plain(each, depth - 1) for each in value)
    return value is None or isinstance(value, (bool, int, float, str, complex))


@contextlib.contextmanager
def standing_in(*places: tuple[Any, str, Callable[..., Any]]) -> Iterator[None]:
    """``(owner, name, function)`` each: as long as it lasts, that function is what ``owner`` has under ``name``."""
    was = [(owner, name, vars(owner).get(name)) for owner, name, _ in places]
    for owner, name, function in places:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, plain in was:
            delattr(owner, name) if plain is None else setattr(owner, name, plain)


def filling(plain: Callable[..., Any], fill: Callable[[Any], None]) -> Callable[..., Any]:
    """``plain``, whose result is filled."""

    def filled(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        fill(made)
        return made

    return filled


def numpy_filled(value: float) -> contextlib.AbstractContextManager[None]:
    """Fresh arrays have that value; where numpy is not imported nothing makes any."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return contextlib.nullcontext()

    def fill(made: Any) -> None:
        if made.dtype.kind == "f":
            made.fill(value)

    return standing_in(*[(numpy, name, filling(getattr(numpy, name), fill)) for name in ("empty", "empty_like")])
