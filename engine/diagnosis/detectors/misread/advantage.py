"""An advantage that trains its critic by the loss of the policy."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.source import called_name, nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_DIFFERENCES = frozenset({"sub", "subtract"})
_PRODUCTS = frozenset({"mul", "multiply"})
_SQUARES = frozenset({"square", "pow"})
_KEEPS = frozenset({"sub", "subtract", "div", "divide", "truediv", "scale", "clamp", "clip", "neg", "squeeze"})
_REGRESSIONS = frozenset({"mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "square_error_cost"})
_LOGARITHMS = frozenset({"log_softmax", "logsumexp"})
_PICKS = frozenset({"gather", "take_along_axis"})  # the logarithm of what was done
_SHAPES = frozenset({"squeeze", "unsqueeze", "reshape", "view", "stack", "cat", "concat", "neg", "scale", "getitem"})
_BACKWARDS = frozenset({"backward", "grad"})
_MOST = 64  # products and regressions of one iteration


@dataclass(frozen=True, slots=True)
class _Difference:
    value: Any  # a weak reference of what is learnt
    line: SourceLine | None


@dataclass(frozen=True, slots=True)
class _Product:
    value: Any
    line: SourceLine | None
    difference: SourceLine | None


@detector("no-gradient")
class AdvantageNotDetached(Detector):
    """``-(log_prob * (returns - values)).mean()``: the values are a critic's, which a loss of its own brings near to
    the returns, and the loss of the policy trains it, too: it moves so that likely actions look better than they are.

    Evidence: the difference that carries the gradient of the values, the product with log-probabilities of what was
    chosen, and the loss that compares the same values with returns.
    Mistaken for: a value that no loss of its own trains; programs with several backward calls, where the critic's
    gradients may be cleared between; other logarithms than those of a softmax of which one place was picked: not told.
    Cost: in sampled iterations a look at differences, products and regressions.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._softmax: Marks[None] = Marks()
        self._logs: Marks[None] = Marks()
        self._own: Marks[None] = Marks()
        self._differences: Marks[_Difference] = Marks()
        self._products: list[_Product] = []
        self._regressed: list[tuple[Any, SourceLine | None]] = []
        self._told = False

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or not call.results or not call.operands or not call.grad_mode:
            return
        name, result, source = plain(call.name), call.results[0], call.operands[0]
        self._follow(call, name, source, result)
        if name in _REGRESSIONS:
            self._regression(call)
        elif name in _SQUARES and _is_square(call, name) and (known := self._differences.of(source)) is not None:
            self._regresses(known.what.value, line_of(call.lines))
        elif name in _PRODUCTS and len(call.operands) == 2:
            self._product(call)
        elif name in _DIFFERENCES and len(call.operands) == 2:
            one, other = call.operands
            value = one if one.requires_grad else other
            own = self._logs.of(value) is not None or self._own.of(value) is not None
            if one.requires_grad != other.requires_grad and shape(one) == shape(other) and not own:
                known = self._differences.of(value)
                what = known.what if known is not None else _Difference(weakref.ref(value), line_of(call.lines))
                self._differences.put(result, what, name, None)
                return
        if name in _KEEPS and (known := self._differences.of(source)) is not None:
            self._differences.put(result, known.what, known.name, known.line)

    def composite(self, call: OperatorCall) -> None:
        if not self._told and call.results and call.grad_mode and plain(call.name) in _REGRESSIONS:
            self._regression(call)

    def _is_own(self, value: Any) -> bool:
        return any(marks.of(value) is not None for marks in (self._own, self._logs, self._softmax))

    def _regression(self, call: OperatorCall) -> None:
        if len(call.operands) > 1:
            for one, other in (call.operands[:2], call.operands[1::-1]):
                if one.requires_grad and not other.requires_grad:
                    self._regresses(weakref.ref(one), line_of(call.lines))

    def _regresses(self, value: Any, line: SourceLine | None) -> None:
        if len(self._regressed) < _MOST:
            self._regressed.append((value, line))
            self._compare()

    def _follow(self, call: OperatorCall, name: str, source: Any, result: Any) -> None:
        if name == "softmax" or (name in ("exp", *_SHAPES, *_PICKS) and self._is_own(source)):
            self._own.put(result, None, name, None)  # a probability of the policy itself, as in a focal loss
        if name in _LOGARITHMS and source.requires_grad:
            self._softmax.put(result, None, name, None)
        elif name in _DIFFERENCES and any(self._softmax.of(each) is not None for each in call.operands):
            self._softmax.put(result, None, name, None)  # logits - logsumexp
        elif name in _PICKS | {"expand", "broadcast_tensors"}:
            found = [each for each in call.operands if self._softmax.of(each) is not None]
            for each in call.results if found else ():
                (self._logs if name in _PICKS else self._softmax).put(each, None, name, None)
        elif name in _SHAPES and any(self._logs.of(each) is not None for each in call.operands):
            self._logs.put(result, None, name, None)

    def _product(self, call: OperatorCall) -> None:
        for one, other in (call.operands, call.operands[::-1]):
            known = self._differences.of(other)
            if known is not None and self._logs.of(one) is not None and one.requires_grad:
                line = line_of(call.lines)
                if line is not None and _calls_backward_once(line.file) and len(self._products) < _MOST:
                    self._products.append(_Product(known.what.value, line, known.what.line))
                    self._compare()

    def _compare(self) -> None:
        """As both are alive: nothing else lies at their addresses."""
        for product in self._products:
            value = product.value()
            for ref, line in self._regressed:
                if value is not None and ref() is value and not self._told:
                    self._told = True
                    self._tell(product, line)

    def iteration_end(self) -> None:
        self._products, self._regressed = [], []

    def _tell(self, product: _Product, regressed: SourceLine | None) -> None:
        facts = self.facts
        facts.tell(
            Finding(
                0, "no-gradient", "warning", 0.85,
                f"{place(product.line)} multiplies log-probabilities with an advantage that carries the gradient of "
                f"the values ({place(product.difference)}): the loss of the policy trains the critic, too; detach it",
                None, None, facts.iteration + 1, product.line, facts.cause(product.line),
                [
                    f"the same values are compared with their target at {place(regressed)}, which is what trains them",
                    f"the difference is made at {place(product.difference)}, with no detach() or no_grad in between",
                ],
                [f"b {place(product.line)}", "info node"],
            )
        )  # fmt: skip


def _is_square(call: OperatorCall, name: str) -> bool:
    return name == "square" or (len(call.arguments) > 1 and call.arguments[1] in (2, 2.0))


def _calls_backward_once(file: str) -> bool:
    return sum(called_name(each) in _BACKWARDS for each in nodes_of(file)) == 1
