"""A loss that is given its target for the prediction, and the prediction for its target."""

from __future__ import annotations

import ast
import re

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.source import called_name, nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

#: Not symmetric in their two arguments. A divergence is meant either way round.
_LOSSES = frozenset({
    "cross_entropy", "cross_entropy_with_softmax", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "bce_loss", "sigmoid_cross_entropy_with_logits", "poisson_nll_loss", "soft_margin_loss",
    "multilabel_soft_margin_loss",
})  # fmt: skip
_MOST = 1000  # lines that are looked at
_POSITIVE = re.compile(r"pos", re.IGNORECASE)
_NEGATIVE = re.compile(r"neg", re.IGNORECASE)


@detector("loss-input")
class Swapped(Detector):
    """A loss takes prediction and target the other way round: what it is given first needs no gradient, and what is
    given for the target does. Nothing raises, and gradients come by way of the target.

    Evidence: which of the two carries gradients, the shapes, the loss.
    Mistaken for: symmetric losses, divergences and differences (not looked at), a target that is learnt beside a
    prediction that is as well (not told).
    Cost: in sampled iterations a look at each operator's name, and at the source of each line once.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: object) -> None:
        super().__init__(facts)  # type: ignore[arg-type]
        self._seen = False
        self._told: set[SourceLine | None] = set()
        self._lines: set[SourceLine] = set()

    def applied(self) -> bool:
        return self._seen

    def composite(self, call: OperatorCall) -> None:
        self.operator(call)

    def operator(self, call: OperatorCall) -> None:
        line = line_of(call.lines)
        if line is not None and line not in self._lines and len(self._lines) < _MOST:
            self._lines.add(line)  # Paddle's triplet loss is a function of Python's, of several operators
            if plain(call.name).startswith("triplet_margin") or _is_triplet(line):
                self._triplet(call)
                return
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

    def _triplet(self, call: OperatorCall) -> None:
        """By the names of what it is given: anchor, what is like it, what is not."""
        line = line_of(call.lines)
        self._seen = True
        names = _triplet_names(line) if line is not None and line not in self._told else []
        if len(names) != 3 or not (_NEGATIVE.search(names[1]) and _POSITIVE.search(names[2])):
            return
        self._told.add(line)
        facts = self.facts
        message = (
            f"{call.name} at {place(line)} is given {names[1]} for what is like the anchor, and {names[2]} for what is "
            "not: what belongs together is driven apart; exchange them"
        )
        evidence = [
            f"{place(line)}: {facts.text_of(line) if line is not None else ''}",
            "its arguments are the anchor, the positive, the negative",
        ]
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.88, message, None, None, facts.iteration + 1, line, facts.cause(line),
                evidence, [f"b {place(line)}"],
            )
        )  # fmt: skip


def _is_triplet(line: SourceLine) -> bool:
    return any(
        "triplet" in called_name(node).lower() and node.lineno <= line.line <= (node.end_lineno or 0)
        for node in nodes_of(line.file) if isinstance(node, ast.Call)
    )  # fmt: skip


def _triplet_names(line: SourceLine) -> list[str]:
    """The three arguments of a call on that line, by place."""
    for node in nodes_of(line.file):
        if isinstance(node, ast.Call) and len(node.args) == 3 and node.lineno <= line.line <= (node.end_lineno or 0):
            names = [ast.unparse(each) for each in node.args]
            if not any(_POSITIVE.search(each) and _NEGATIVE.search(each) for each in names):
                return names
    return []
