"""A target of temporal differences that the loss trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.losses import SAME
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_REGRESSIONS = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "square_error_cost"})
_PRODUCTS = frozenset({"mul", "multiply", "scale"})
_SQUARES = frozenset({"square", "pow", "abs"})
_LEAST = 0.5  # of a discount


@dataclass(frozen=True, slots=True)
class _What:
    """``stage``: "discount" (a factor, of masks), "discounted" (what is learnt, times it), "target" (rewards added),
    "error" (the difference to a prediction)."""

    stage: str
    discount: float
    line: SourceLine | None = None  # that adds the rewards


@detector("no-gradient")
class Bootstrapped(Detector):
    """``target = reward + 0.99 * value(next)`` carries gradients, and the loss compares a prediction with it: a step
    moves the target towards the prediction as well. It is to be made under ``no_grad``, or detached.

    Evidence: the product with a discount of 0.5 to 1, the sum with what needs no gradient, the loss of both.
    Mistaken for: residual gradients, which go through both on purpose (the warning says so), predictions that are made
    so and compared with fixed targets (not told).
    Cost: in sampled iterations a look at each operator's name.
    """

    sampled = Need.OPERATORS
    calls = False

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[_What] = Marks()
        self._waiting: list[tuple[Marked[_What], SourceLine | None]] = []  # differences that were squared
        self._told: set[SourceLine | None] = set()
        self._applied = False

    def applied(self) -> bool:
        return self._applied

    def operator(self, call: OperatorCall) -> None:
        if call.in_backward or call.error is not None or not call.results or not call.operands or not call.grad_mode:
            return
        name, result = plain(call.name), call.results[0]
        if name in _PRODUCTS:
            self._product(call, result)
        elif name == "add" and len(call.operands) == 2:
            self._add(call, result)
        elif name in ("sub", "subtract") and len(call.operands) == 2:
            self._subtract(call, result)
        elif name in SAME:
            known = self._marks.of(call.operands[0])
            if known is not None:
                self._marks.put(result, known.what, known.name, known.line)
        elif name in _REGRESSIONS and len(call.operands) > 1:
            self._regression(call)
        elif name in _SQUARES:
            known = self._marks.of(call.operands[0])
            if known is not None and known.what.stage == "error":
                self._tell(known, line_of(call.lines))

    def _product(self, call: OperatorCall, result: Any) -> None:
        numbers = [each for each in (*call.arguments, *call.keywords.values()) if type(each) is float]
        if len(call.operands) == 1:
            known = self._marks.of(call.operands[0])
            if numbers and _LEAST <= numbers[0] < 1 and known is None:
                stage = "discounted" if result.requires_grad else "discount"
                self._marks.put(result, _What(stage, numbers[0]), call.name, line_of(call.lines))
            return
        known = next((found for each in call.operands if (found := self._marks.of(each)) is not None), None)
        if known is None or known.what.stage not in ("discount", "discounted"):
            return
        learnt = sum(each.requires_grad for each in call.operands)
        if learnt <= 1:  # with a mask of what has ended
            stage = "discounted" if learnt else "discount"
            self._marks.put(result, _What(stage, known.what.discount), call.name, line_of(call.lines))

    def _add(self, call: OperatorCall, result: Any) -> None:
        first, second = call.operands
        for learnt, fixed in ((first, second), (second, first)):
            known = self._marks.of(learnt)
            if known is not None and known.what.stage == "discounted" and not fixed.requires_grad:
                line = line_of(call.lines)
                self._marks.put(result, _What("target", known.what.discount, line), call.name, line)

    def _subtract(self, call: OperatorCall, result: Any) -> None:
        for target, other in (call.operands, call.operands[::-1]):
            known = self._marks.of(target)
            if known is not None and known.what.stage == "target" and other.requires_grad:
                what = _What("error", known.what.discount, known.what.line)
                self._marks.put(result, what, call.name, line_of(call.lines))

    def _regression(self, call: OperatorCall) -> None:
        first, second = call.operands[:2]
        for target, other in ((second, first), (first, second)):
            known = self._marks.of(target)
            if known is not None and known.what.stage == "target":
                self._applied = True
                if other.requires_grad and self._marks.of(other) is None:
                    self._tell(known, line_of(call.lines))

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if len(running.chain) == 1:
            self._marks = Marks()

    def _tell(self, known: Marked[_What], line: SourceLine | None) -> None:
        facts, made = self.facts, known.what.line
        self._applied = True
        if made in self._told:
            return
        self._told.add(made)
        message = (
            f"the target of {place(made)} carries gradients, and {place(line)} compares a prediction with it: each "
            "step moves the target as well; make it under no_grad, or detach it"
        )
        evidence = [
            f"{place(made)}: {facts.text_of(made) if made is not None else ''}",
            f"what is learnt is multiplied by {known.what.discount:g} and added to what needs no gradient: a target of "
            "temporal differences",
            "right only where the gradient through the target is meant (residual gradients)",
        ]
        facts.tell(
            Finding(
                0, "no-gradient", "warning", 0.8, message, None, None, facts.iteration + 1, line, facts.cause(made),
                evidence, [f"b {place(made)}"],
            )
        )  # fmt: skip
