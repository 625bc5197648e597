"""Terms of a loss that have the wrong sign: what is to become small is made large."""

from __future__ import annotations

import ast
import math
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.diagnosis.variables import frame_at, value_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_SUMS = frozenset({"add", "add_n", "stack", "cat", "concat", "minimum", "maximum", "min", "max"})
_KEEPS = frozenset({
    "mean", "sum", "mean_all", "reshape", "view", "squeeze", "unsqueeze", "flatten", "clamp", "clip", "cast", "to",
    "float", "double", "contiguous", "nanmean", "nansum", "relu", "getitem",
})  # fmt: skip
_NOISE = frozenset({"randn", "randn_like", "normal", "gaussian", "standard_normal"})
_MOST = 2000  # nodes of a loss that are walked
_LIKELIHOOD = re.compile(r"log_?p|logp|log_?pi|ratio|\blp\b|nll|clip|clamp", re.IGNORECASE)
_COEFFICIENT = re.compile(r"coef|beta|alpha|weight|\bc\d|lambda|scale", re.IGNORECASE)
_GOOD = re.compile(r"adv|return|reward|\bgae\b|\bret(s|urns?)?\b|\bR\b|\bG\b", re.IGNORECASE)
_OVERLAP = re.compile(r"dice|iou|jaccard|overlap|inter|tversky|f1", re.IGNORECASE)
_ENTROPY = re.compile(r"\bent\b|\bentrop(y|ies)\b", re.IGNORECASE)
_FEW = 32  # terms of a numerator
_BAD = re.compile(r"cost|regret|penal|loss|-", re.IGNORECASE)
_NEGATIVE = re.compile(r"nll|neg", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class _Term:
    """How a tensor was computed. ``op``: "" of what is not looked into, "linear": a sum of ``parts`` with these signs,
    "exp": of its only part, "policy": the logarithm of a chance times what speaks for it ("inverted": with
    that of before divided by that of now), "entropy", "overlap": of a prediction and its target, by both."""

    op: str
    line: SourceLine | None = None
    parts: tuple[tuple[int, _Term], ...] = ()


@dataclass(frozen=True, slots=True)
class _Reached:
    """A term, its sign in the loss, and the lines that turned the sign on the way down from the loss."""

    sign: int
    turned: tuple[SourceLine | None, ...] = ()


@detector("wrong-sign", "log-scale")
class WrongSign(Detector):
    """A term whose sign is turned in what backward starts from. Of a KL divergence ``-(1 + L - mu ** 2 - exp(L)) / 2``
    of a normal distribution with L the logarithm of its variance: with the other sign it has no lower bound, and the
    variance grows or vanishes. Of a policy gradient ``-log_prob * advantage``: without the minus the choices that paid
    become rarer; so they do where its ratio is ``exp(old - new)``. Of an overlap (Dice, IoU), which is to be large, and
    of the entropy of a policy.
    "log-scale": noise is multiplied by L itself, where the deviation, exp(L / 2), is meant.

    Evidence: the sign of ``exp(L)`` and of L in the loss, followed through sums, factors and means; of the product its
    two names in the source and its sign.
    Mistaken for: optimizers that maximize (not told), factors that may be of either sign (not told), costs and regrets
    (by their names; not told), quotients that are no overlap by their names (not told).
    Cost: in sampled iterations a look at each operator's name.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS
    calls = False

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._terms: Marks[_Term] = Marks()
        self._noise: Marks[None] = Marks()
        self._drawn: list[tuple[_Term, SourceLine | None, float | None]] = []  # L, where, its least number
        self._applied = False
        self._maximizes = False
        self._told: set[SourceLine | None] = set()

    def applied(self) -> bool:
        return self._applied

    def optimizer(self, event: Any) -> None:
        groups = getattr(event.optimizer, "param_groups", None)
        if event.what == "made" and isinstance(groups, list):
            self._maximizes = self._maximizes or any(isinstance(each, dict) and each.get("maximize") for each in groups)

    # ---- how tensors are computed

    def operator(self, call: OperatorCall) -> None:
        if call.in_backward or call.error is not None or not call.results or not call.grad_mode:
            return
        result = call.results[0]
        if plain(call.name) in _NOISE and not result.requires_grad:
            self._noise.put(result, None, call.name, None)
        if not call.operands:
            return
        if not result.requires_grad or len(call.results) > 2:
            return
        made = self._made(call, plain(call.name), line_of(call.lines))
        if made is not None:
            self._terms.put(result, made, call.name, made.line)

    def _made(self, call: OperatorCall, name: str, line: SourceLine | None) -> _Term | None:
        operands, first = call.operands, call.operands[0]
        if name == "exp":
            return _Term("exp", line, ((1, self._term(first)),))
        if name == "neg":
            return _Term("linear", line, ((-1, self._term(first)),))
        if name in _KEEPS:
            return _Term("linear", line, ((1, self._term(first)),))
        if name in _SUMS:
            return _Term("linear", line, tuple((1, self._term(each)) for each in operands if each.requires_grad))
        if name in ("sub", "subtract", "rsub"):
            turned = name == "rsub" or call.name.startswith("__r")
            signs = (-1, 1) if turned else (1, -1)
            if len(operands) == 1 and call.arguments and call.arguments[0] is not first:
                signs = (-1, 1)  # 1 - x
            parts = zip(signs, operands)
            return _Term("linear", line, tuple((sign, self._term(each)) for sign, each in parts if each.requires_grad))
        if name in ("mul", "multiply", "div", "divide", "truediv", "scale"):
            return self._product(call, name, line)
        return None

    def _product(self, call: OperatorCall, name: str, line: SourceLine | None) -> _Term | None:
        learnt = [each for each in call.operands if each.requires_grad]
        if len(learnt) == 2 and name in ("div", "divide", "truediv"):
            first, second = (self._term(each) for each in call.operands[:2])
            overlaps = _leads_to(first, "common") and not _leads_to(second, "common") and _is_overlap(line)
            return _Term("overlap", line) if overlaps else None
        if len(learnt) != 1:
            return None
        others = [each for each in call.operands if each is not learnt[0]]
        if not others:
            numbers = _numbers(call)
            sign = _sign_of(numbers)
            if sign and numbers != [-1.0] and line is not None and _is_entropy(line, numbers[0]):
                return _Term("linear", line, ((sign, _Term("entropy", line)),))
            return _Term("linear", line, ((sign, self._term(learnt[0])),)) if sign else None
        if line is not None and _is_policy(line):
            turned = _inverted(self._term(learnt[0]))
            return _Term("inverted", turned.line) if turned is not None else _Term("policy", line)
        read = self.facts.backend.stats(others[0])
        if self._noise.of(others[0]) is not None:
            self._drawn.append((self._term(learnt[0]), line, self.facts.backend.stats(learnt[0]).min))
        if name in ("mul", "multiply") and self.facts.shape(others[0]) == self.facts.shape(learnt[0]):
            share = read.min is not None and read.max is not None and read.min >= 0 and read.max <= 1 and read.max > 0
            if share and math.prod(self.facts.shape(others[0])) > 1:
                return _Term("common", line, ((1, self._term(learnt[0])),))  # what a mask has in common with it
        sign = 1 if read.min is not None and read.min >= 0 else -1 if read.max is not None and read.max <= 0 else 0
        return _Term("linear", line, ((sign, self._term(learnt[0])),)) if sign else None

    def _term(self, value: Any) -> _Term:
        known = self._terms.of(value)
        if known is None:
            term = _Term("")
            self._terms.put(value, term, "", None)
            return term
        return known.what

    # ---- the loss

    def backward_begin(self, running: Running) -> None:
        if running.call.entry != "backward" or len(running.chain) > 1 or not self.facts.sampled or self._maximizes:
            return
        for root in running.call.root_values():
            known = self._terms.of(root)
            if known is not None:
                self._judge(known.what)

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if len(running.chain) == 1:
            self._terms, self._noise, self._drawn = Marks(), Marks(), []

    def _judge(self, root: _Term) -> None:
        reached = _walk(root)
        pays = any(each.op == "policy" and at.sign < 0 for each, at in reached.items())
        for term, at in reached.items():
            if term.op in ("policy", "inverted", "overlap", "entropy") and at.sign:
                self._applied = True
            if term.op == "inverted" and at.sign < 0:
                self._tell_inverted(term)
            elif term.op == "overlap" and at.sign > 0:
                self._tell_overlap(term)
            elif term.op == "entropy" and at.sign > 0 and pays:
                self._tell_entropy(term)
            elif term.op == "policy" and at.sign:
                self._applied = True
                if at.sign > 0 and (term.line is None or not _NEGATIVE.search(self.facts.text_of(term.line))):
                    self._tell_policy(term, at)
            elif term.op == "exp":
                (_, inner), *_ = term.parts
                self._scales(inner, term)
                linear = reached.get(inner)
                if linear is not None and linear.sign and at.sign == -linear.sign:
                    self._applied = True
                    if at.sign < 0:
                        self._tell_divergence(term, at)

    def _scales(self, logarithm: _Term, exp: _Term) -> None:
        while logarithm.op == "linear" and len(logarithm.parts) == 1 and logarithm.parts[0][0] > 0:
            logarithm = logarithm.parts[0][1]  # exp(0.5 * L), exp(L.clamp(...))
        for drawn, line, least in self._drawn:
            if drawn is not logarithm or least is None or least >= 0 or line in self._told:
                continue
            message = (
                f"{place(line)} multiplies noise by the logarithm of a variance: {place(exp.line)} takes exp of the "
                "same tensor; the deviation is exp(0.5 * L)"
            )
            text = self.facts.text_of(line) if line is not None else ""
            evidence = [
                f"{place(line)}: {text}",
                f"{place(exp.line)}: {self.facts.text_of(exp.line) if exp.line is not None else ''}",
                f"its least number is {least:.4g}: no deviation is below 0",
            ]
            self._tell(line, "error", 0.9, message, evidence, "log-scale")

    def _tell_divergence(self, term: _Term, at: _Reached) -> None:
        line = next((each for each in reversed(at.turned) if each not in (None, term.line)), term.line)
        message = (
            f"the KL divergence of {place(term.line)} has the wrong sign in the loss: minimized is L - exp(L), which "
            f"has no lower bound; it is -0.5 * (1 + L - mu ** 2 - exp(L)), and is added"
        )
        evidence = [
            f"exp(L) of {place(term.line)} is subtracted in what backward starts from, and L is added",
            f"{place(line)}: {self.facts.text_of(line) if line is not None else ''}",
        ]
        self._tell(line, "error", 0.9, message, evidence)

    def _tell_policy(self, term: _Term, at: _Reached) -> None:
        message = (
            f"the policy gradient of {place(term.line)} has the wrong sign: minimized is the log-probability times "
            "what speaks for the choice, so that what paid becomes rarer; a minus is missing"
        )
        text = self.facts.text_of(term.line) if term.line is not None else ""
        evidence = [
            f"{place(term.line)}: {text}",
            "it is added in what backward starts from, with no minus on the way",
            "right only if what it is weighted with is a cost, whatever its name says",
        ]
        self._tell(term.line, "warning", 0.8, message, evidence)

    def _tell_inverted(self, term: _Term) -> None:
        text = self.facts.text_of(term.line) if term.line is not None else ""
        message = (
            f"the ratio of {place(term.line)} is turned round: the probability of before is divided by that of now, so "
            "that what paid becomes rarer; it is exp(log_prob - old_log_prob)"
        )
        evidence = [f"{place(term.line)}: {text}", "the log-probability that is trained is subtracted under exp"]
        self._tell(term.line, "error", 0.88, message, evidence)

    def _tell_overlap(self, term: _Term) -> None:
        text = self.facts.text_of(term.line) if term.line is not None else ""
        message = (
            f"the overlap of {place(term.line)} is made small: what a prediction and its target have in common, "
            "divided by both, is added to the loss; 1 less it is meant"
        )
        evidence = [
            f"{place(term.line)}: {text}",
            "the numerator is a sum of the prediction times a target of 0 to 1; no minus is on the way to the loss",
        ]
        self._tell(term.line, "error", 0.88, message, evidence)

    def _tell_entropy(self, term: _Term) -> None:
        text = self.facts.text_of(term.line) if term.line is not None else ""
        message = (
            f"the entropy of {place(term.line)} is added to the loss of a policy, so that it is made small: choices "
            "become certain before they are tried; a bonus is subtracted"
        )
        self._tell(term.line, "warning", 0.8, message, [f"{place(term.line)}: {text}"])

    def _tell(
        self, line: SourceLine | None, severity: str, sure: float, message: str, evidence: list[str],
        kind: str = "wrong-sign",
    ) -> None:  # fmt: skip
        if line in self._told:
            return
        self._told.add(line)
        self.facts.tell(
            Finding(
                0, kind, severity, sure, message, None, None, self.facts.iteration, line,
                self.facts.cause(line), evidence, [f"b {place(line)}"],
            )
        )  # fmt: skip


def _walk(root: _Term) -> dict[_Term, _Reached]:
    """Every term that the loss is a sum of, with its sign; 0 where it comes with both."""
    found: dict[_Term, _Reached] = {root: _Reached(1)}
    todo = [root]
    while todo and len(found) < _MOST:
        term = todo.pop()
        here = found[term]
        for sign, part in term.parts if term.op in ("linear", "common") else ():
            at = _Reached(here.sign * sign, (*here.turned, term.line) if sign < 0 else here.turned)
            known = found.get(part)
            if known is None:
                found[part] = at
                todo.append(part)
            elif known.sign != at.sign:
                found[part] = _Reached(0)
    return found


def _leads_to(term: _Term, op: str) -> bool:
    """Whether a sum of positive parts has one of that kind."""
    todo, seen = [term], 0
    while todo and seen < _FEW:
        seen += 1
        here = todo.pop()
        if here.op == op:
            return True
        if here.op == "linear":
            todo += [part for sign, part in here.parts if sign > 0]
    return False


def _inverted(term: _Term) -> _Term | None:
    """The ``exp(old - new)`` that it is, ``new`` being what is trained."""
    while term.op == "linear" and len(term.parts) == 1 and term.parts[0][0] > 0:
        term = term.parts[0][1]
    inner = term.parts[0][1] if term.op == "exp" else None
    return term if inner is not None and inner.op == "linear" and [sign for sign, _ in inner.parts] == [-1] else None


def _is_overlap(line: SourceLine | None) -> bool:
    """By its name: of what lies beside the target the same quotient is to be small."""
    return line is not None and _OVERLAP.search(f"{Facts.text_of(line)} {line.function}") is not None


def _is_entropy(line: SourceLine, number: float) -> bool:
    """Whether this product of the line, by its number, is that with an entropy's name."""
    frame = frame_at(line)
    entropies: list[float] = []
    others: list[float] = []
    for sides in _products(line):
        named = [_ENTROPY.search(ast.unparse(each)) is not None for each in sides]
        found = [_value(each, frame) for each, name in zip(sides, named) if not name]
        (entropies if any(named) else others).extend(each for each in found if each is not None)
        if any(ast.unparse(each).startswith("-") or "cross" in ast.unparse(each) for each in sides):
            return False
    return entropies == [number] and number not in others


def _value(node: ast.expr, frame: types.FrameType | None) -> float | None:
    value: Any = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif frame is not None:
        value = value_of(node, frame)
    return float(value) if type(value) in (int, float) else None


def _products(line: SourceLine) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in nodes_of(line.file):
        inside = isinstance(node, ast.BinOp) and node.lineno <= line.line <= (node.end_lineno or node.lineno)
        if inside and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield node.left, node.right


def _numbers(call: OperatorCall) -> list[float]:
    """Of a product with plain numbers; of Paddle's ``scale`` the factor, not what is added."""
    given = [*call.arguments, *call.keywords.values()]
    found = [float(each) for each in given if type(each) in (int, float)]
    return found[:1] if plain(call.name) == "scale" else found


def _sign_of(numbers: Sequence[float]) -> int:
    sign = 1
    for each in numbers:
        sign *= (each > 0) - (each < 0)
    return sign if numbers else 0


def _is_policy(line: SourceLine) -> bool:
    """Whether the products of the line, but for those with a number, have the names of a log-probability (or a ratio of
    probabilities) and of what speaks for a choice."""
    found = False
    for sides in _products(line):
        one, other = map(ast.unparse, sides)
        if any(isinstance(each, ast.Constant) or _COEFFICIENT.search(ast.unparse(each)) for each in sides):
            continue
        if _LIKELIHOOD.search(other) and not _LIKELIHOOD.search(one):
            one, other = other, one
        if not _LIKELIHOOD.search(one) or not _GOOD.search(other) or _BAD.search(other) or _BAD.search(one):
            return False
        found = True
    return found
