"""A loss that is given its target for the prediction, and the prediction for its target."""

from __future__ import annotations

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

#: Not symmetric in their two arguments. A divergence is meant either way round.
_LOSSES = frozenset({
    "cross_entropy", "cross_entropy_with_softmax", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "bce_loss", "sigmoid_cross_entropy_with_logits", "poisson_nll_loss", "soft_margin_loss",
    "multilabel_soft_margin_loss",
})  # fmt: skip


@detector("loss-input")
class Swapped(Detector):
    """A loss takes prediction and target the other way round: what it is given first needs no gradient, and what is
    given for the target does. Nothing raises, and gradients come by way of the target.

    Evidence: which of the two carries gradients, the shapes, the loss.
    Mistaken for: symmetric losses, divergences and differences (not looked at), a target that is learnt beside a
    prediction that is as well (not told).
    Cost: in sampled iterations a look at each operator's name.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: object) -> None:
        super().__init__(facts)  # type: ignore[arg-type]
        self._seen = False
        self._told: set[SourceLine | None] = set()

    def applied(self) -> bool:
        return self._seen

    def operator(self, call: OperatorCall) -> None:
        if plain(call.name) not in _LOSSES or len(call.operands) < 2 or call.error is not None or call.in_backward:
            return
        self._seen = True
        first, second = call.operands[:2]
        line = line_of(call.lines)
        if first.requires_grad or not second.requires_grad or line in self._told:
            return
        self._told.add(line)
        facts = self.facts
        message = (
            f"{call.name} at {place(line)} is given its arguments the other way round: the first, which is to be the "
            "prediction, needs no gradient, and the second, the target, does; swap them"
        )
        evidence = [
            f"the first {shape(first)} was made of nothing that is trained; the second {shape(second)} has a graph",
            f"{place(line)}: {facts.text_of(line) if line is not None else ''}",
        ]
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.9, message, None, None, facts.iteration + 1, line, facts.cause(line),
                evidence, [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip
