"""Gradients that are too small for float16."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.sizes.sizes import FLAT, GATES, Place, size_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Visit
from adbg.engine.types import SourceLine

_SMALL = 1e-4  # of numbers that an operator is given
_LOST = 0.3  # share of elements that become 0
_PICKS = {"index", "select", "slice", "embedding", "gather", "nativedropout", "dropout", "unfold", "convolution"}
_CASTS = (".half(", "float16", ".to(", "astype", ".cast(", "fp16")


@dataclass(slots=True)
class _Lost:
    iterations: list[int] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    backward: int = 0
    order: int = 0
    sharp: bool = False
    location: SourceLine | None = None
    whole: bool = True
    zero: int = 0
    numel: int = 0


@detector("half-underflow")
class HalfUnderflow(Detector):
    """Gradients in float16 that become 0 because they are below its smallest number (6e-8), where the loss is not
    scaled: the node where it begins.

    Evidence: the largest element and the number of zeros among what flows in and what leaves.
    Mistaken for: operators that make zeros of their own (ReLU, dropout, masks, indexing) do not count; nor does a share
    below 30 %.
    Cost: nothing without float16; else statistics of the small gradients in sampled iterations.
    """

    gradients = True
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._small: set[tuple[str, int]] = set()  # lines that multiply float16 by a number that is small, and not 0
        self._lost: dict[Place, _Lost] = {}
        self._seen: set[int] = set()  # iterations with half nodes

    def applied(self) -> bool:
        return bool(self._seen)

    def operator(self, call: OperatorCall) -> None:
        if call.lines and any(type(each) is float and 0 < abs(each) < _SMALL for each in call.arguments):
            self._small.add((call.lines[0].file, call.lines[0].line))

    def node_end(self, visit: Visit) -> None:
        backend = self.facts.backend
        if not self.facts.sampled or not visit.ins:
            return
        slot = next((at for at, value in enumerate(visit.ins) if backend.is_tensor(value)), None)
        if (
            slot is None
            or not str(visit.ins[slot].dtype).endswith("float16")
            or str(visit.ins[slot].dtype).endswith("bfloat16")
        ):
            return
        self._seen.add(self.facts.iteration)
        size = size_of(visit)
        if size.op in GATES | FLAT | _PICKS or not size.entering:
            return
        for at, value in enumerate(visit.ins):
            norm = size.leaving[at] if at < len(size.leaving) else None
            if norm is not None and norm <= values.NORMAL["f16"] * 2 * max(1, size.elements) ** 0.5:
                self._look(visit, at, value)
                return

    def _look(self, visit: Visit, slot: int, value: object) -> None:
        backend = self.facts.backend
        leaving = values.stats(backend, value)
        entering = next((values.stats(backend, each) for each in visit.outs if backend.is_tensor(each)), None)
        if leaving is None or entering is None or not leaving.all_finite or not entering.all_finite:
            return
        looked, came = leaving.sampled or leaving.numel, entering.sampled or entering.numel
        if leaving.zero / looked - entering.zero / came < _LOST:
            return
        peak, left = _peak(entering.min, entering.max), _peak(leaving.min, leaving.max)
        cast = backend.meta(visit.outs[0]).dtype != "f16"
        call = visit.running.call
        operands = [
            each.value for each in call.saved(visit.key) if each.name != "result" and backend.is_tensor(each.value)
        ]
        if left > values.NORMAL["f16"] or any(backend.norm(value) == 0 for value in operands):
            return
        info = call.describe(visit.key)
        small = info.forward is not None and (info.forward.file, info.forward.line) in self._small
        if not cast and not operands and peak > 1e-2 and not small:  # a factor of 0 cannot be told from a small one
            return
        place = Place(plain_name(info.name), info.unique_name, info.module, info.forward)
        lost = self._lost.setdefault(place, _Lost(order=visit.index))
        lost.iterations.append(self.facts.iteration)
        lost.backward, lost.location = call.number, call.location
        lost.sharp = peak > 1e-3 and not cast
        lost.zero, lost.numel = leaving.zero, looked
        if len(lost.evidence) < 4:
            lost.evidence.append(
                f"iteration {self.facts.iteration}: up to {peak:.4g} flows in ({entering.zero:,} of {came:,} are 0); "
                f"{leaving.zero:,} of {looked:,} of grad_inputs[{slot}] are 0, the largest is {left:.4g}"
            )

    def end(self) -> None:
        sustained = [
            (place, lost) for place, lost in self._lost.items()
            if len(set(lost.iterations)) >= max(1, min(2, len(self._seen)))
        ]  # fmt: skip
        if not sustained:
            return
        place, lost = min(sustained, key=lambda each: each[1].order)
        text = Facts.text_of(place.forward) if place.forward is not None else ""
        explicit = lost.sharp or any(cast in text for cast in _CASTS)
        line = place.forward if explicit else lost.location
        evidence = [*lost.evidence]
        if len(sustained) > 1:
            evidence.append(f"the same at {len(sustained) - 1} more nodes")
        evidence.append(
            "the smallest float16 above 0 is 6e-8; a loss scaler multiplies the loss so that gradients stay above"
        )
        if lost.location is not None:
            evidence.append(f"backward is called at {lost.location.file}:{lost.location.line}")
        self.facts.tell(Finding(
            id=0, kind="half-underflow", severity="warning",
            confidence=0.9 if lost.zero == lost.numel else 0.8,
            message=f"gradients underflow in float16: {lost.zero:,} of {lost.numel:,} elements become 0 in "
            f"{f'`{text}` ({place.unique})' if text else place.unique}; the loss is not scaled",
            node=FoundAt(place.op, place.unique, place.module, None), backward=lost.backward, forward=place.forward,
            cause=self.facts.cause(line), evidence=evidence, next=[f"b {place.unique} after"],
        ))  # fmt: skip


def _peak(low: float, high: float) -> float:
    return max(abs(low), abs(high)) if low == low else 0.0
