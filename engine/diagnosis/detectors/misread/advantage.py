"""An advantage that trains its critic by the loss of the policy, or whose sign is turned."""

from __future__ import annotations

import ast
import re
import weakref
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.diagnosis.source import called_name, nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
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


_PASSES = frozenset({"mean", "sum", "squeeze", "unsqueeze", "reshape", "view", "to", "cast", "float", "clone",
                     "assign", "detach", "clamp", "clip"})  # fmt: skip
_READ = 1 << 16  # numbers of what it is multiplied by
_GOOD = re.compile(r"return|reward|gain|\bret\b|\bR\b|target", re.I)
_BAD = re.compile(r"cost|regret|penal|risk", re.I)
_SCALES = frozenset({"mul", "multiply", "scale", "div", "divide", "truediv"})


@dataclass(frozen=True, slots=True)
class _Signed:
    """Something that grows with ``more`` less ``less``, or falls (``sign`` -1); ``policy``: times a log-probability."""

    more: object  # which tensors were subtracted, whatever was detached or reshaped of them
    less: object
    line: SourceLine | None
    learns: int = 0  # the one of them that carries gradients alone: 1 the first, -1 the second
    sign: int = 1
    policy: bool = False


@detector("loss-input")
class AdvantageTurned(Detector):
    """``advantage = values.detach() - returns`` in ``-(log_prob * advantage).mean()``: what did better than the critic
    expected is made less likely. It is ``returns - values``.

    Evidence: the critic's loss, which says which of the two is the value and which the return; the signs on the way
    from the difference to the loss that backward is called on.
    Mistaken for: losses that are maximized (``maximize=True``), another critic than the one whose values are taken,
    costs and regrets by their names, and anything else than sums, products with numbers and means on that way: not
    told. A note where no name says that what the critic learns is a return.
    Cost: in sampled iterations a look at differences, products and sums.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._logs: Marks[None] = Marks()
        self._softmax: Marks[None] = Marks()
        self._bases: Marks[object] = Marks()  # one for all that was detached or reshaped of one
        self._signed: Marks[_Signed] = Marks()
        self._critics: list[tuple[object, object, SourceLine | None]] = []  # (value, return)
        self._looks: dict[SourceLine | None, int] = {}
        self._told = False

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or not call.results or not call.operands or call.in_backward:
            return
        name, source, result = plain(call.name), call.operands[0], call.results[0]
        self._follow_logs(call, name, source, result)
        known = self._signed.of(source)
        if name in _DIFFERENCES and len(call.operands) == 2:
            self._subtract(call, result)
        elif name in ("add", "stack", "cat", "concat") and (found := self._policy_of(call)) is not None:
            self._signed.put(result, found, name, None)
        elif name in _SCALES and len(call.operands) == 2:
            self._multiply(call, name, result)
        elif known is not None and name in ("add", *_DIFFERENCES):  # of a number
            turned = call.name in ("__rsub__", "rsub")
            self._signed.put(result, replace(known.what, sign=-known.what.sign) if turned else known.what, name, None)
        elif known is not None and (name == "neg" or (name in _SCALES and _number(call) != 0)):
            turned = name == "neg" or _number(call) < 0
            self._signed.put(result, replace(known.what, sign=-known.what.sign) if turned else known.what, name, None)
        elif known is not None and name in _PASSES:
            self._signed.put(result, known.what, name, None)
        elif name in ("detach", "squeeze", "unsqueeze", "reshape", "view"):
            self._bases.put(result, self._base(source), name, None)
        elif name in _REGRESSIONS:
            self.composite(call)
        elif name in _SQUARES and _is_square(call, name) and known is not None:
            pair = (known.what.more, known.what.less)
            if known.what.learns and len(self._critics) < _MOST:
                value, wanted = pair if known.what.learns > 0 else pair[::-1]
                self._critics.append((value, wanted, line_of(call.lines)))

    def composite(self, call: OperatorCall) -> None:
        if plain(call.name) in _REGRESSIONS and len(call.operands) > 1:
            self._learns(call.operands[0], call.operands[1], line_of(call.lines))

    def _learns(self, one: Any, other: Any, line: SourceLine | None) -> None:
        for value, wanted in ((one, other), (other, one)):
            if value.requires_grad and not wanted.requires_grad and len(self._critics) < _MOST:
                self._critics.append((self._base(value), self._base(wanted), line))

    def _base(self, value: Any) -> object:
        known = self._bases.of(value)
        if known is None:
            self._bases.put(value, object(), "", None)
            known = self._bases.of(value)
        return known.what if known is not None else None

    def _follow_logs(self, call: OperatorCall, name: str, source: Any, result: Any) -> None:
        if name in _LOGARITHMS and source.requires_grad:
            self._softmax.put(result, None, name, None)
        elif name in _DIFFERENCES | {"expand", "broadcast_tensors"}:
            known = any(self._softmax.of(each) is not None for each in call.operands)
            if name in _DIFFERENCES:  # logits - logsumexp; the other way round it falls with the probability
                taken = call.operands[1] if len(call.operands) == 2 else None
                known = taken is not None and call.name != "__rsub__" and self._softmax.of(taken) is not None
            for each in call.results if known else ():
                self._softmax.put(each, None, name, None)
        marks = self._softmax if name in _PICKS else self._logs if name in _SHAPES - {"neg", "scale"} else None
        if marks is not None and any(marks.of(each) is not None for each in call.operands):
            self._logs.put(result, None, name, None)

    def _subtract(self, call: OperatorCall, result: Any) -> None:
        one, other = call.operands
        first, second = self._signed.of(one), self._signed.of(other)
        if first is not None and not (second is not None and second.what.policy):
            self._signed.put(result, first.what, "sub", None)  # its mean, an entropy
        elif second is not None:
            self._signed.put(result, replace(second.what, sign=-second.what.sign), "sub", None)
        elif shape(one) == shape(other) and shape(one) and not (one.is_leaf and one.requires_grad):
            learns = int(one.requires_grad) - int(other.requires_grad)
            what = _Signed(self._base(one), self._base(other), line_of(call.lines), learns)
            self._signed.put(result, what, "sub", what.line)

    def _multiply(self, call: OperatorCall, name: str, result: Any) -> None:
        for one, other in (call.operands, call.operands[::-1]):
            known = self._signed.of(one)
            if known is None or (name not in _PRODUCTS and one is not call.operands[0]):
                continue
            if self._signed.of(other) is not None:
                return
            if self._logs.of(other) is not None:
                if not known.what.policy:
                    self._signed.put(result, replace(known.what, policy=True), name, None)
            elif not other.requires_grad:  # a mask, a count, a deviation
                read = few_numbers(self.facts.backend, other, _READ)
                if read is not None and read.flat and min(read.flat) >= 0:
                    self._signed.put(result, known.what, name, None)
            return

    def _policy_of(self, call: OperatorCall) -> _Signed | None:
        """What a sum has of a policy's loss."""
        found = [each.what for one in call.operands if (each := self._signed.of(one)) is not None]
        policies = [each for each in found if each.policy]
        return policies[0] if policies and len({each.sign for each in policies}) == 1 else None

    def backward_begin(self, running: Running) -> None:
        for root in running.call.root_values() if not self._told and len(running.chain) == 1 else ():
            known = self._signed.of(root)
            if known is None or not known.what.policy:
                continue
            what, critics = known.what, self._critics
            for value, wanted, line in critics:
                good = ((what.more, what.less) == (wanted, value)) - ((what.more, what.less) == (value, wanted))
                if good * what.sign > 0 and _is_minimized(running):
                    self._looks[what.line] = self._looks.get(what.line, 0) + 1
                    if self._looks[what.line] >= 2:
                        self._tell(what, line)
                    break

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        self._critics = []

    def _tell(self, what: _Signed, critic: SourceLine | None) -> None:
        self._told = True
        facts = self.facts
        texts = " ".join(facts.text_of(each) for each in (what.line, critic) if each is not None)
        if _BAD.search(texts):  # what is to become small
            return
        named = _GOOD.search(texts) is not None
        facts.tell(
            Finding(
                0, "loss-input", "warning", 0.85 if named else 0.45,
                f"the advantage at {place(what.line)} has the wrong sign where the loss comes of it: what did better "
                "than the critic expected is made less likely; it is the return less the value",
                None, None, facts.iteration, what.line, facts.cause(what.line),
                [
                    f"the critic's loss at {place(critic)} says which is the value, and which the return",
                    "on the way from that difference to the loss of backward the signs make it grow with the "
                    "log-probability of what did better",
                    *([] if named else ["whether the critic learns what is to become large decides it"]),
                ],
                [f"b {place(what.line)}", "info node"],
            )
        )  # fmt: skip


def _number(call: OperatorCall) -> float:
    """The factor or divisor; 0 where it is none."""
    given = [*call.arguments[1:], *call.keywords.values()]
    return next((float(each) for each in given if type(each) in (int, float)), 0.0)


def _is_minimized(running: Running) -> bool:
    line = running.call.location
    return line is None or not any(
        isinstance(each, ast.keyword) and each.arg == "maximize" and ast.unparse(each.value) != "False"
        for each in nodes_of(line.file)
    )  # fmt: skip
