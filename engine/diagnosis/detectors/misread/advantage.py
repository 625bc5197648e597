"""An advantage that trains its critic by the loss of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_DIFFERENCES = frozenset({"sub", "subtract"})
_PRODUCTS = frozenset({"mul", "multiply"})
_KEEPS = frozenset({"sub", "subtract", "add", "div", "divide", "truediv", "clamp", "clip", "neg", "mul", "multiply",
                    "scale", "float", "to", "cast", "squeeze", "reshape", "view"})  # fmt: skip
_REGRESSIONS = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "square_error_cost"})
_LOGARITHMS = frozenset({"log_softmax", "logsumexp", "log", "gather", "take_along_axis", "log_prob"})
_SHAPES = frozenset({"squeeze", "unsqueeze", "reshape", "view", "sum", "stack", "cat", "concat", "neg", "sub",
                     "subtract", "getitem", "add", "mul", "div", "gather", "take_along_axis", "exp"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Difference:
    value: int  # id of what is learnt
    line: SourceLine | None


@dataclass(frozen=True, slots=True)
class _Product:
    value: int
    line: SourceLine | None
    difference: SourceLine | None


@detector("no-gradient")
class AdvantageNotDetached(Detector):
    """``-(log_prob * (returns - values)).mean()``: the values are a critic's, which a loss of its own brings near to
    the returns, and the loss of the policy trains it, too: it moves so that likely actions look better than they are.

    Evidence: the difference that carries the gradient of the values, the product with log-probabilities, and the loss
    that compares the same values with returns.
    Mistaken for: a value that no loss of its own trains, weights that are learnt beside it and are no logarithms of
    probabilities: not told.
    Cost: in sampled iterations a look at differences, products and regressions.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._logs: Marks[None] = Marks()
        self._differences: Marks[_Difference] = Marks()
        self._products: list[_Product] = []
        self._regressed: dict[int, SourceLine | None] = {}
        self._told = False

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or not call.results or not call.operands or not call.grad_mode:
            return
        name, result = plain(call.name), call.results[0]
        source = call.operands[0]
        made = name in _LOGARITHMS and name not in ("gather", "take_along_axis") and source.requires_grad
        if made or (name in _SHAPES and any(self._logs.of(each) is not None for each in call.operands)):
            self._logs.put(result, None, name, None)
        if name in _REGRESSIONS and len(call.operands) > 1:
            for one, other in (call.operands[:2], call.operands[1::-1]):
                if one.requires_grad and not other.requires_grad:
                    self._regressed[id(one)] = line_of(call.lines)
        elif name in _PRODUCTS and len(call.operands) == 2:
            self._product(call)
        elif name in _DIFFERENCES and len(call.operands) == 2:
            one, other = call.operands
            if one.requires_grad != other.requires_grad and shape(one) == shape(other):
                value = one if one.requires_grad else other
                if self._logs.of(value) is None:
                    known = self._differences.of(value)
                    what = known.what if known is not None else _Difference(id(value), line_of(call.lines))
                    self._differences.put(result, what, name, None)
                    return
        if name in _KEEPS and (known := self._differences.of(call.operands[0])) is not None:
            self._differences.put(result, known.what, known.name, known.line)

    def _product(self, call: OperatorCall) -> None:
        for one, other in (call.operands, call.operands[::-1]):
            known = self._differences.of(other)
            if known is not None and self._logs.of(one) is not None and one is not other and one.requires_grad:
                self._products.append(_Product(known.what.value, line_of(call.lines), known.what.line))

    def iteration_end(self) -> None:
        for product in self._products:
            if not self._told and product.value in self._regressed:
                self._told = True
                self._tell(product, self._regressed[product.value])
        self._products, self._regressed = [], {}

    def _tell(self, product: _Product, regressed: SourceLine | None) -> None:
        facts = self.facts
        facts.tell(
            Finding(
                0, "no-gradient", "warning", 0.85,
                f"{place(product.line)} multiplies log-probabilities with an advantage that carries the gradient of "
                f"the values ({place(product.difference)}): the loss of the policy trains the critic, too; detach it",
                None, None, facts.iteration, product.line, facts.cause(product.line),
                [
                    f"the same values are compared with their target at {place(regressed)}, which is what trains them",
                    f"the difference is made at {place(product.difference)}, with no detach() or no_grad in between",
                ],
                [f"b {place(product.line)}", "info node"],
            )
        )  # fmt: skip
