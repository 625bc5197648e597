"""Units of a layer that began alike, and get the same gradient ever since."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.sizes.unconstrained import given_at
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_WEIGHTS = 200  # that are looked at
_ELEMENTS = 1 << 20  # of one of them: 5 ms, once
_UNITS = 8  # whose gradients are compared
_LONG = 4096  # elements of one unit's gradient
_ITERATIONS = 3
_ZEROS = 3  # layers of zeros: of two one behind the other see ZeroGradient, by the product that they make
_NEAR = 1e-4  # of the largest: sums are taken in another order for another column
_PRODUCTS = {"linear": 1, "matmul": 1, "mm": 1, "conv1d": 1, "conv2d": 1, "conv3d": 1, "addmm": 2}


@dataclass(slots=True)
class _Weight:
    ref: weakref.ref[Any]
    axis: int  # along which its units lie
    used: SourceLine | None
    name: str = ""
    shape: tuple[int, ...] = ()
    value: float | None = None  # of all elements, where they are one
    line: SourceLine | None = None  # that gave it its values
    alike: bool = True
    looked: set[int] = field(default_factory=set)  # iterations
    silent: bool = True  # every gradient was 0


@detector("symmetric-units")
class Alike(Detector):
    """All units of a layer began with the same weights (``constant_(weight, 0.1)``, zeros), and so do those that take
    them: each computes what the others compute and gets the same gradient, at every step. The layer is as good as one
    unit. Of zeros in several layers one behind the other, no gradient comes through at all.

    Evidence: the values of the units, and their gradients, by iteration.
    Mistaken for: a last layer of zeros, adapters of which one half is zeros, constant weights beside random ones: their
    units get gradients of their own (not told).
    Cost: each weight is read once (5 ms for a million elements); those that began alike are read again, with their
    gradients, in sampled iterations.
    """

    sampled = Need.OPERATORS
    calls = False

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._weights: dict[int, _Weight] = {}
        self._following = False  # some of them
        self._told: dict[tuple[SourceLine | None, bool], int] = {}

    def applied(self) -> bool:
        return bool(self._weights)

    def operator(self, call: OperatorCall) -> None:
        at = _PRODUCTS.get(plain(call.name))
        if at is None or call.in_backward or call.error is not None or len(call.operands) <= at or self._told:
            return
        weight = call.operands[at]
        if id(weight) in self._weights or len(self._weights) >= _WEIGHTS:
            return
        shape = self.facts.shape(weight)
        if len(shape) < 2 or not weight.is_leaf or not weight.requires_grad:
            return
        rows = plain(call.name) == "linear" and self.facts.backend.name == "torch"
        axis = 0 if rows or plain(call.name).startswith("conv") else len(shape) - 1
        known = _Weight(weakref.ref(weight), axis, line_of(call.lines), shape=shape)
        self._weights[id(weight)] = known
        known.alike = self._began_alike(weight, known) and (shape[axis] > 1 or known.value == 0)
        self._following = self._following or known.alike

    def _began_alike(self, weight: Any, known: _Weight) -> bool:
        read = values.few_numbers(self.facts.backend, weight, _ELEMENTS)
        if read is None or not _same_units(read.flat, known.shape, known.axis):
            return False
        first = read.flat[0]
        known.value = first if all(each == first for each in read.flat[:_LONG]) else None
        # Paddle draws a weight's first values into another tensor: what is written into it then is its birth.
        known.line = self.facts.written(weight) or self.facts.born(weight) or given_at(self.facts, weight)
        return True

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is not None or not self.facts.sampled or running.call.entry != "backward":
            return
        for known in self._weights.values():
            weight = known.ref() if known.alike else None
            gradient = self.facts.backend.gradient_of(weight) if weight is not None else None
            if gradient is None:
                continue
            read = values.few_numbers(self.facts.backend, gradient, _ELEMENTS)
            near = read is not None and _near_units(read.flat, known.shape, known.axis)
            if read is None or not near:
                known.alike = False
                continue
            known.silent = known.silent and not any(read.flat)
            known.looked.add(self.facts.iteration)

    def iteration_end(self) -> None:
        if not self._following or self.facts.iteration < _ITERATIONS or (self._told and not self.facts.sampled):
            return
        groups: dict[tuple[SourceLine | None, bool], list[_Weight]] = {}
        for known in self._weights.values():
            if known.alike and len(known.looked) >= _ITERATIONS and self._is_alike_still(known):
                groups.setdefault((known.line, known.silent), []).append(known)
        for key, id in list(self._told.items()):
            if key not in groups:
                self.facts.take_back(id)
                del self._told[key]
        for key, group in groups.items():
            zeros = key[1]
            group = group if zeros else [each for each in group if each.shape[each.axis] > 1]
            counts = len(group) >= _ZEROS and all(each.value == 0 for each in group) if zeros else bool(group)
            if counts and key not in self._told:
                self._told[key] = self._tell(group, zeros)

    def _is_alike_still(self, known: _Weight) -> bool:
        weight = known.ref()
        read = values.few_numbers(self.facts.backend, weight, _ELEMENTS) if weight is not None else None
        if weight is not None:  # in the first forward modules are only being met
            known.name = self.facts.title_of(weight) or f"the weight used at {place(known.used)}"
        known.alike = weight is None or (read is not None and _near_units(read.flat, known.shape, known.axis))
        return known.alike and weight is not None

    def _tell(self, group: list[_Weight], zeros: bool) -> int:
        facts, first = self.facts, group[0]
        names, line = facts.some([each.name for each in group]), first.line or first.used
        units = first.shape[first.axis]
        began = f"{first.value:.4g} everywhere" if first.value is not None else "the same in every unit"
        if zeros:
            message = (
                f"{names} are all zeros, made so at {place(line)}, and stay so: what comes in is multiplied by 0 on "
                "the way forward, and the gradient on the way back; initialise all but the last at random"
            )
        else:
            message = (
                f"{names}: the {units} units began alike ({began}, {place(line)}), get the same gradient and stay "
                "alike, so that the layer has but one; initialise it at random"
            )
        looks = sorted(first.looked)
        evidence = [
            f"{each.name} {list(each.shape)}: {f'{each.value:.4g} everywhere' if each.value is not None else began} "
            "before the first step"
            for each in group[:4]
        ]
        said = "0" if zeros else f"the same for all of its {units} units"
        evidence.append(f"the gradient of {first.name} is {said} in iterations {', '.join(map(str, looks[:8]))}")
        node = FoundAt(parameter=first.name)
        return facts.tell(
            Finding(
                0, "symmetric-units", "error", 0.93, message, node, None, facts.iteration, line, facts.cause(line),
                evidence, ["info params"],
            )
        )  # fmt: skip


def _units(flat: Sequence[float], shape: tuple[int, ...], axis: int, most: int) -> list[Sequence[float]]:
    """The elements of each of the first units."""
    count = min(shape[axis], most)
    if axis == 0:
        size = len(flat) // shape[0]
        return [flat[at * size : (at + 1) * size] for at in range(count)]
    return [flat[at :: shape[axis]] for at in range(count)]


def _same_units(flat: Sequence[float], shape: tuple[int, ...], axis: int) -> bool:
    first, *others = _units(flat, shape, axis, shape[axis])
    return all(each == first for each in others)


def _near_units(flat: Sequence[float], shape: tuple[int, ...], axis: int) -> bool:
    first, *others = (each[:_LONG] for each in _units(flat, shape, axis, _UNITS))
    most = max(map(abs, first), default=0.0)
    return all(abs(one - other) <= _NEAR * most for each in others for one, other in zip(first, each))
