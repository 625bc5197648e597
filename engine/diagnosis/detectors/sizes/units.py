"""Layers of which most units are dead or saturated for all of the data."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.sizes.masked import switched_off
from adbg.engine.diagnosis.detectors.sizes.sizes import (
    NO_ORIGIN,
    Origin,
    Place,
    biased_by_hand,
    fed_by,
    origin_of,
    size_of,
)
from adbg.engine.diagnosis.detectors.sizes.zeros import ZeroGradient
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.types import SourceLine

_STOP = {"relu", "threshold", "relu6"}
_SATURATE = {"sigmoid", "tanh", "hardsigmoid"}
_SATURATED = {"sigmoid": 0.0025, "hardsigmoid": 0.0025, "tanh": 0.01}  # 1 % of its largest derivative
_FEWEST = 8  # units of a layer
_MOST = 256  # units of a layer that are looked at
_ELEMENTS = 1 << 21  # that are read in one iteration: 20 ms
_ROWS = 32  # of data that a unit has to have met, in two looks or more, and was never alive in
_SETTLED = 32  # iterations in which inputs, weights or steps that are too large have saturated it
_SHARE = 0.75  # of the units, for a warning; half of them for a note


@dataclass(slots=True)
class _Unit:
    alive: int = 0  # the last iteration in which it passed a gradient on
    rows: int = 0  # met since
    looks: int = 0


@dataclass(slots=True)
class _Layer:
    op: str
    place: Place
    first: int
    units: dict[int, _Unit] = field(default_factory=dict)
    shares: list[tuple[int, float]] = field(default_factory=list)  # (iteration, of its units dead in that batch)
    backward: int = 0
    size: int = 0
    layer: str = ""
    origin: Origin = NO_ORIGIN  # of one that is dead as it is met
    off: frozenset[int] | None = None  # units whose weights are all zero; None: not looked for yet
    gate: SourceLine | None = None  # where its bias was set by hand


@detector("dead-units", "saturated-units")
class DeadUnits(Detector):
    """A layer of which most units are dead: their ReLU gives 0 for every row of every batch that was looked at, so that
    they learn nothing and add nothing; since which iteration. "saturated-units": the same of sigmoid and tanh, of whose
    derivative less than 1 % is left.

    Evidence: per unit, the gradients that flow into the activation and what leaves it; shares by iteration.
    Mistaken for: hinge losses and masks, which are after no layer, and units that get no gradient, are not counted.
    Nor are those of a layer that was pruned: all weights of theirs are 0. Gates whose bias was set by hand, to begin
    open or closed, are a note. Of a layer of less than 8 units all have to be dead. Where all units are dead from the
    start zero-gradient tells, if a parameter has a name.
    Half of the units of a deep network without normalisation may be dead by its initialisation: up to three quarters a
    note.
    Cost: in sampled iterations two copies of the gradients at these activations, up to 2 million elements in all.
    """

    gradients = True

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._layers: dict[str, _Layer] = {}
        self._left = 0

    def applied(self) -> bool:
        return bool(self._layers)

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) == 1:
            self._left = _ELEMENTS

    def node_end(self, visit: Visit) -> None:
        if not self.facts.sampled or len(visit.running.chain) > 1 or not visit.ins or not visit.outs:
            return
        size = size_of(visit)
        if (size.op not in _STOP and size.op not in _SATURATE) or not size.entering or size.elements > self._left:
            return
        call = visit.running.call
        axis, layer = fed_by(call, visit.key)
        if layer is None:
            return
        self._left -= size.elements
        backend = self.facts.backend
        entering, leaving = (values.numbers(backend, each) for each in (visit.outs[0], visit.ins[0]))
        if entering is None or leaving is None or entering.shape != leaving.shape or len(leaving.shape) < 2:
            return
        if entering.first_bad() is not None or leaving.first_bad() is not None:
            return  # after a NaN nothing is dead or saturated
        at = 1 if axis == "first" else len(leaving.shape) - 1
        count = leaving.shape[at]
        if count >= _FEWEST or size.op in _STOP:
            self._look(visit, size.op, layer, (entering.flat, leaving.flat), leaving.shape, at)

    def _look(self, visit: Visit, op: str, layer: int, flats: tuple[Any, Any], shape: tuple[int, ...], at: int) -> None:
        call, iteration = visit.running.call, self.facts.iteration
        info = call.describe(visit.key)
        place = Place(op, info.unique_name, info.module, info.forward)
        known = self._layers.setdefault(info.unique_name, _Layer(op, place, iteration))
        known.backward, known.size, known.layer = call.number, shape[at], _title(call, layer)
        limit = 0.0 if op in _STOP else _SATURATED[op]
        met = dead = 0
        for number in range(0, shape[at], -(-shape[at] // _MOST)):
            came, left = (_of_unit(flat, shape, at, number) for flat in flats)
            rows = len(came) - came.count(0.0)  # 5 times as fast as one by one
            if not rows or (known.off and number in known.off):
                continue
            unit = known.units.setdefault(number, _Unit())
            met += 1
            if any(left) if not limit else any(abs(b) > limit * abs(a) for a, b in zip(came, left)):
                unit.alive, unit.rows, unit.looks = iteration, 0, 0
            else:
                dead += 1
                unit.rows += rows
                unit.looks += 1
        if dead and known.off is None:
            known.off = switched_off(self.facts, call, layer, shape[at]) if op in _STOP else frozenset()
            if known.off:
                known.units = {}
                self._look(visit, op, layer, flats, shape, at)
                return
        if met:
            if not known.shares:
                known.origin = origin_of(self.facts, call, visit.key, place) if dead == met else NO_ORIGIN
                known.gate = biased_by_hand(self.facts, call, visit.key) if op == "sigmoid" else None
            known.shares.append((iteration, dead / met))

    def end(self) -> None:
        for known in self._layers.values():
            dead = [each for each in known.units.values() if each.looks >= 2 and each.rows >= _ROWS]
            share = len(dead) / len(known.units) if known.units else 0.0
            since = max((each.alive for each in dead), default=0)
            # Of a few units all have to be dead, in three looks: nothing passes them any more.
            few = len(known.units) < _FEWEST
            if share <= 0.5 or (few and (share < 1 or min(each.looks for each in dead) < 3)):
                continue
            if share == 1 and not since and known.op in _STOP and self._told_as_zero(known.place):
                continue
            self._tell(known, len(dead), share, since)

    def _told_as_zero(self, place: Place) -> bool:
        """Whether "zero-gradient" names the parameters that get nothing for it: leaves without a name it leaves out."""
        other = self.facts.shared.get(ZeroGradient)
        return other is not None and other.blames(place)

    def _tell(self, known: _Layer, count: int, share: float, since: int) -> None:
        place, stops = known.place, known.op in _STOP
        what = "dead" if stops else "saturated"
        begun = "in every iteration that was looked at"
        if since:
            after = next((when for when, part in known.shares if when > since), since + 1)
            when = str(after) if after == since + 1 else f"{since + 1} to {after}"
            begun = f"since iteration {when} (the last of them passed a gradient on in iteration {since})"
        text = Facts.text_of(place.forward) if place.forward is not None else ""
        where = f"`{text}` ({place.unique})" if text and len(text) < 90 else place.unique
        half = share < _SHARE
        why = (
            "it gives 0 for every row, so what feeds them gets no gradient" if stops
            else "less than 1 % of its derivative is left for every row"
        )  # fmt: skip
        evidence = [
            f"iteration {when}: {part:.0%} of the units are {what} for the whole batch"
            for when, part in known.shares[-6:]
        ]
        evidence.append(f"{count} of {len(known.units)} units that were looked at (of {known.size}) are {what} {begun}")
        if known.layer:
            evidence.append(f"they are fed by {known.layer}")
        evidence.append(
            "a bias far below 0, a learning rate that threw them there, or inputs that are not normalised do that"
            if stops else "weights or inputs that are too large do that"
        )  # fmt: skip
        origin = known.origin if not since else NO_ORIGIN
        evidence += origin.evidence
        confidence = 0.45 if half else (0.9 if share == 1 else 0.8) if stops else 0.65
        if known.gate is not None:
            confidence = min(confidence, 0.45)
            at = f"{known.gate.file}:{known.gate.line}"
            evidence.append(f"the bias of that layer is set at {at}: right for gates that are to begin open or closed")
        if not stops and since > _SETTLED:
            confidence = min(confidence, 0.45)
            evidence.append("training itself may drive them there: whether its loss still falls decides")
        if half:
            evidence.append("a deep network without normalisation begins so: whether its loss falls decides")
        self.facts.tell(Finding(
            id=0, kind="dead-units" if stops else "saturated-units", severity="warning",
            confidence=confidence,
            message=f"{share:.0%} of the units at {where} are {what} {begun}: {why}",
            node=FoundAt(place.op, place.unique, place.module, None), backward=known.backward, forward=place.forward,
            cause=self.facts.cause(origin.line or place.forward), evidence=evidence, next=[f"b {place.unique} after"],
        ))  # fmt: skip


def _of_unit(flat: array[Any], shape: tuple[int, ...], at: int, number: int) -> array[Any]:
    """All that one unit has: its place on axis ``at``."""
    inner = 1
    for each in shape[at + 1 :]:
        inner *= each
    if inner == 1:
        return flat[number :: shape[at]]
    block = shape[at] * inner
    found = flat[:0]
    for begin in range(number * inner, len(flat), block):
        found += flat[begin : begin + inner]  # an array's memory is copied, no number is made
    return found


def _title(call: Any, layer: int) -> str:
    info = call.describe(layer)
    return f"{info.unique_name}" + (f" of {info.module}" if info.module else "")
