"""Parameters that always get a gradient of zero, and the operator that makes it zero."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace

from adbg.engine.backends.base import BackwardCall
from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.axes.weights import Summed, SummedWeights
from adbg.engine.diagnosis.detectors.graphs.calls import place as at_line
from adbg.engine.diagnosis.detectors.graphs.rounded import Rounded
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.sizes import cancelled, products, recurrent
from adbg.engine.diagnosis.detectors.sizes.biases import LowBiases
from adbg.engine.diagnosis.detectors.sizes.bounds import Bounds, HeldLeaves
from adbg.engine.diagnosis.detectors.sizes.sizes import (
    FLAT,
    GATES,
    NO_ORIGIN,
    Origin,
    Place,
    Size,
    origin_of,
    size_of,
)
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.graph.index import index_of
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.types import SourceLine

_SMALL = 1e-9  # of what flows in, and of 1: what leaves a saturated operator is as good as zero. Of 1 / p as p
# comes to 0 1e27 flows in, and 0.3 that leaves trains
_UNDERFLOWN = 1e-4  # norm: elements around the smallest numbers of float16
_LEAVES = 40  # looked at in one backward

_HINGES = ("relu", "threshold", "clamp", "hardtanh", "maximum", "minimum")
_DEAD = ("relu", "threshold", "relu6")
_WHY = {
    "relu": "all units are dead: every input of this ReLU is negative",
    "threshold": "all units are dead: every input of this ReLU is negative",
    "sigmoid": "it is saturated: every output is 0 or 1, where its derivative is 0",
    "hardsigmoid": "it is saturated: every input is outside of its linear range",
    "tanh": "it is saturated: every output is -1 or 1, where its derivative is 0",
    "softmax": "it is saturated: every row has all its weight on one element",
    "logsoftmax": "it is saturated: every row has all its weight on the target",
    "clamp": "every input is outside of its bounds, where its derivative is 0",
    "hardtanh": "every input is outside of its bounds, where its derivative is 0",
    "relu6": "every input is outside of 0 to 6, where its derivative is 0",
    "maximum": "the other one is always larger",
    "minimum": "the other one is always smaller",
    "where": "its other branch is always taken",
    "maskedfill": "all of it is masked",
}


@dataclass(slots=True)
class _Leaf:
    seen: int = 0
    zero: int = 0
    sources: dict[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Seen:
    """Of a place that made a gradient zero."""

    iterations: list[int] = field(default_factory=list)
    entering: list[float] = field(default_factory=list)
    leaving: list[float] = field(default_factory=list)
    backward: int = 0
    origin: Origin = NO_ORIGIN
    lossless: int = 0  # backwards of a loss that was exactly 0


@detector("zero-gradient")
class ZeroGradient(Detector):
    """Parameters whose gradient is exactly zero in every iteration that was looked at, and the operator at which it
    becomes zero: dead ReLU units, saturated sigmoid, tanh or softmax, clamp outside of its bounds, a maximum or minimum
    whose other side is always taken, rounding and sign, a product of two parameters that were both initialised with
    zeros, two uses whose gradients cancel exactly (``log_prob`` of what ``rsample`` drew of the same mean).

    Where a bias was initialised so far below 0 that this alone makes a ReLU dead, that line is the cause.

    Evidence: the norm of the gradient that flows into that operator and of what leaves it, by iteration.
    Mistaken for: heads that are initialised with zeros and batches that leave a unit unused pass, for they get a
    gradient in another iteration. What was looked at once only is told with less confidence. A margin that every sample
    keeps, so that the loss is 0, and a softmax over one element beside which the rest is trained: notes. No note where
    a sum then runs over other elements, each with that weight of 1 (scores of (B, T, 1), over the last axis).
    Cost: two norms a node, in sampled iterations.
    """

    gradients = True
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._leaves: dict[str, _Leaf] = {}
        self._seen: dict[Place, _Seen] = {}
        self._sizes: dict[int, dict[int, Size]] = {}  # by serial of the call, then by node
        self._biases = LowBiases(facts)
        self._bounds = Bounds(facts)
        self._held = HeldLeaves(facts)
        self._inputs = recurrent.Inputs(facts)
        self._single: set[SourceLine] = set()  # lines of a softmax over one element
        self._summed: dict[SourceLine, Summed] = {}  # by the line of such a softmax: the sum that uses its weights
        self._lone = SummedWeights(facts.backend.name == "torch", _is_lone, self._found)
        facts.shared[ZeroGradient] = self

    def operator(self, call: OperatorCall) -> None:
        if call.error is None:
            self._biases.look(call)
            self._bounds.look(call)
            self._held.look(call)
            self._inputs.look(call)
            self._lone.look(call)
            if call.name.strip("_") == "softmax" and call.results and call.lines:
                read = values.stats(self.facts.backend, call.results[0])
                if read is not None and read.min == 1:
                    self._single.update(call.lines)

    def _found(self, used: Summed) -> None:
        """Not along the batch: that counts how often a lone expert was chosen."""
        if used.axis == 0:
            return
        self._summed.setdefault(
            used.weights.softmax, replace(used, value=None, weights=replace(used.weights, used=None))
        )

    def backward_begin(self, running: Running) -> None:
        if self.facts.sampled and len(running.chain) == 1:
            self._sizes = {running.serial: {}}

    def node_end(self, visit: Visit) -> None:
        here = self._sizes.get(visit.running.serial)
        if here is not None and self.facts.sampled:
            here[visit.key] = size_of(visit)

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        sizes = self._sizes.pop(running.serial, None)
        if not sizes or error is not None or running.call.entry != "backward":
            return
        call = running.call
        zero: list[tuple[int, _Leaf]] = []
        saturated = any(size.op in GATES and _stops(size) for size in sizes.values())
        for key, size in sizes.items():
            if not call.is_accumulate(key):
                continue
            name = self.facts.leaf_at(call, key) or self._held.name_at(call, key)
            if not name:
                continue
            leaf = self._leaves.setdefault(name, _Leaf())
            if not math.isfinite(size.entering):
                continue
            leaf.seen += 1
            if self._is_shift(call, key, sizes):
                continue
            if size.entering == 0 or (saturated and self._as_good_as_zero(running, key, sizes)):
                leaf.zero += 1
                if len(zero) < _LEAVES:
                    zero.append((key, leaf))
        noted: set[int] = set()
        lossless = all(not self.facts.backend.norm(root) for root in call.root_values()) if zero else False
        for key, leaf in zero:
            for source in self._sources(running, key, sizes):
                place = self._place(running, source)
                leaf.sources[place] = leaf.sources.get(place, 0) + 1
                if source.key not in noted:
                    noted.add(source.key)
                    seen = self._seen.get(place)
                    if seen is None:
                        seen = self._seen[place] = _Seen(origin=self._origin(call, source.key, place, sizes))
                    seen.iterations.append(self.facts.iteration)
                    seen.entering.append(source.entering)
                    seen.leaving.append(max((each or 0.0 for each in source.leaving), default=0.0))
                    seen.backward = call.number
                    seen.lossless += lossless

    def _origin(self, call: BackwardCall, key: int, place: Place, sizes: dict[int, Size]) -> Origin:
        if place.op == cancelled.CANCELLED:
            return cancelled.origin_of(call, key, sizes)
        if place.op in products.PRODUCTS:
            return products.origin_of(self.facts, call, key, place.forward)
        if place.op in recurrent.RECURRENT:
            return Origin(None, self._inputs.of(place.forward))
        return origin_of(self.facts, call, key, place)

    @staticmethod
    def _place(running: Running, size: Size) -> Place:
        info = running.call.describe(size.key)
        return Place(size.op, info.unique_name, info.module, info.forward)

    def _as_good_as_zero(self, running: Running, key: int, sizes: dict[int, Size]) -> bool:
        """All that flows into a leaf came through an operator that is saturated."""
        consumers = {consumer for consumer, _ in index_of(running.call).consumers(running.call, key)}
        for at in consumers:
            above = [sizes[each] for each in index_of(running.call).ancestors(running.call, at) if each in sizes]
            if not any(_stops(size) for size in above if size.op in GATES):
                return False
            top = max((size.entering for size in above), default=0.0)
            if sizes[key].entering > _SMALL * min(top, 1.0):
                return False
        return bool(consumers)

    def _is_weight(self, call: BackwardCall, key: int) -> bool:
        """No bias: that of a model whose scores of two samples are subtracted cancels as it should."""
        value = next((each.value for each in call.saved(key) if each.value is not None), None)
        return value is not None and len(self.facts.shape(value)) > 1

    def _is_shift(self, call: BackwardCall, key: int, sizes: dict[int, Size]) -> bool:
        """A number that is added to all that a softmax takes (the bias of a score): what comes to its layer adds up to
        0, whatever that is."""
        consumers = {consumer for consumer, _ in index_of(call).consumers(call, key)}
        comes = max((sizes[at].entering for at in consumers if at in sizes), default=0.0)
        value = next((each.value for each in call.saved(key) if each.value is not None), None)
        one = value is not None and math.prod(self.facts.shape(value) or (1,)) == 1
        return one and 0 < comes < math.inf and sizes[key].entering <= 1e-4 * comes

    def _sources(self, running: Running, key: int, sizes: dict[int, Size]) -> list[Size]:
        """The nodes among those before a leaf that get a gradient and give zero."""
        call = running.call
        above = [at for at in index_of(call).ancestors(call, key)[:-1] if at in sizes]
        found = [sizes[at] for at in above if sizes[at].op in GATES | FLAT and _stops(sizes[at])]
        found = found or [sizes[at] for at in above if products.stops(sizes[at])]
        if not found and self._is_weight(call, key) and (sums := cancelled.cancelled(call, above, sizes)) is not None:
            found = [sums]
        return found[:3]

    def blames(self, place: Place) -> bool:
        """Whether parameters get a gradient of 0 at all times because of that one."""
        return place in self._by_source()

    def end(self) -> None:
        for place, names in self._by_source().items():
            self._tell(place, names)

    def _by_source(self) -> dict[Place, list[str]]:
        by_source: dict[Place, list[str]] = {}
        for name, leaf in self._leaves.items():
            if leaf.zero < leaf.seen:
                continue
            always = [place for place, count in leaf.sources.items() if count == leaf.seen and self._proven(place)]
            if always:
                by_source.setdefault(always[0], []).append(name)
        return by_source

    def _proven(self, place: Place) -> bool:
        """A product gives zeros while one factor is not trained yet, or is masked: told where both were set to zero."""
        seen = self._seen[place]
        return place.op not in products.PRODUCTS or (len(seen.origin.evidence) >= 2 and len(seen.iterations) >= 3)

    def _tell(self, place: Place, names: list[str]) -> None:
        seen = self._seen[place]
        looked = len(set(seen.iterations))
        cancels = place.op == cancelled.CANCELLED
        if cancels:
            why, confidence = (
                "what it gets from those that took its result cancels exactly",
                0.9 if looked >= 2 else 0.6,
            )
        elif place.op in FLAT:
            why, confidence = f"the derivative of {place.op} is 0 everywhere", 0.95
        else:
            product = products.WHY if place.op in products.PRODUCTS else "nothing of what comes in is passed on"
            why = recurrent.WHY if place.op in recurrent.RECURRENT else _WHY.get(place.op, product)
            confidence = 0.85 if looked >= 2 else 0.6
            if place.op in ("where", "maskedfill") or "pool" in place.op:
                confidence = min(confidence, 0.55 if looked >= 3 else 0.45)
        meant = ""
        if place.op == "softmax" and place.forward in self._single:
            why = "it is over one element, whose weight is always 1"
            summed = self._summed.get(place.forward) if place.forward is not None else None
            if summed is not None:
                why = (
                    f"it is over one element, axis {summed.weights.over} of {summed.weights.sizes}, whose weight is "
                    f"always 1, and "
                    f"{at_line(summed.line)} adds up {summed.along} elements with these weights: give it their axis"
                )
            elif any(leaf.zero < leaf.seen for leaf in self._leaves.values()):
                meant = "the other parameters are trained: right if there is but one element to choose from"
        elif place.op in _HINGES and seen.lossless == len(seen.iterations):
            meant = "the loss itself is 0: right if every sample keeps its margin, wrong if it has the wrong sign"
        confidence = min(confidence, 0.45) if meant else confidence
        text = Facts.text_of(place.forward) if place.forward is not None else ""
        words = f"`{text}` ({place.unique})" if text and len(text) < 90 else place.unique
        looks = zip(seen.iterations[:6], seen.entering, seen.leaving)
        comes, goes = ("comes from one of them", "in sum") if cancels else ("flows in", "leaves")
        evidence = [f"iteration {at}: norm {a:.4g} {comes}, {b:.4g} {goes}" for at, a, b in looks]
        evidence.append(f"gradient of {Facts.some(names, 6)}: 0 in all {looked} iterations that were looked at")
        evidence += [*self._bounds.at(place.forward), *seen.origin.evidence]
        if meant:
            evidence.append(meant)
        elif confidence < 0.5:
            evidence.append("more iterations would tell whether it is so always")
        cause = seen.origin.line or place.forward
        found = self._biases.of(names) if place.op in _DEAD else None
        if found is not None:
            name, low = found
            cause, at = low.line, f"{os.path.basename(low.line.file)}:{low.line.line}"
            why = f"all units are dead: {name} was set to {values.plain(low.value)} at {at}"
            reach = values.plain(low.reach or 0.0)
            evidence.append(f"without {name} its inputs would go up to {reach}, with it all are negative")
        node = FoundAt(place.op, place.unique, place.module, None)
        self.facts.tell(Finding(
            id=0, kind="zero-gradient", severity="warning" if place.op not in FLAT else "error", confidence=confidence,
            message=f"{Facts.some(names)} always get a gradient of 0: {words} "
            f"{'gets none' if cancels else 'passes none on'}; {why}",
            node=node, backward=seen.backward, forward=place.forward, cause=self.facts.cause(cause),
            evidence=evidence, next=[f"b {place.unique} after"],
            victim_of=self._underflow(seen) or self._rounded(place) or self._of_zeros(place),
        ))  # fmt: skip

    def _rounded(self, place: Place) -> int | None:
        """The finding that says which sum takes the gradient of what was rounded there."""
        rounded = self.facts.shared.get(Rounded)
        return rounded.told_of(place.forward) if rounded is not None and place.op in FLAT else None

    def _of_zeros(self, place: Place) -> int | None:
        """The finding that says which layers are zeros one behind the other."""
        known = self.facts.findings.values() if place.op in products.PRODUCTS else ()
        return next((each.id for each in known if each.kind == "symmetric-units"), None)

    def _underflow(self, seen: _Seen) -> int | None:
        """The finding that gradients of float16 become 0 further up, where next to nothing is left that flows in."""
        told = (each.id for each in self.facts.findings.values() if each.kind == "half-underflow")
        return next(told, None) if max(seen.entering, default=0.0) < _UNDERFLOWN else None


def _is_lone(sizes: list[int], over: int) -> bool:
    return sizes[over] == 1


def _stops(size: Size) -> bool:
    leaving = [each for each in size.leaving if each is not None]
    return 0 < size.entering < math.inf and bool(leaving) and max(leaving) <= _SMALL * min(size.entering, 1.0)
