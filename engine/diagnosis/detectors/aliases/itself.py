"""A weight that is compared with itself: what is taken for its value of before is the weight, or shares its memory."""

from __future__ import annotations

import ast
import re
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.losses import DIFFERENCES
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.graphs.silent import EVERYWHERE, span_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned, assigned_before, called_name, nodes_of, returns_of, scope_at, tree_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_SHARES = frozenset({"detach", "data"})
_COMPARES = DIFFERENCES | frozenset({"mse_loss", "l1_loss", "square_error_cost"})
_ON_PURPOSE = re.compile(r"\bdetach\(|\.data\b|stop_gradient|lax\.")


@detector("silent-overwrite")
class WithItself(Detector):
    """A weight is compared with what was kept of it (``w - start[name]``: a Reptile step, the distance from pretrained
    weights, a proximal term), and that is the weight itself or shares its memory, for no copy was taken: the
    difference is 0 at all times.

    Evidence: that both operands lie in one memory, a step in between that changed it, the line that kept it.
    Mistaken for: ``w - w.detach()`` in one line, which gives 0 a gradient (not told), what no step came between (not
    told: nothing has changed), tensors that are no parameters (not told), weights that two modules share: a note, where
    it was not detached as it was kept.
    Cost: in sampled iterations a look at the memory of the operands of each difference of weights.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._stepped = ""  # who stepped last, and where: what an event holds is not kept alive
        self._steps = 0
        self._kept: Marks[int] = Marks()  # made of a weight, after how many steps
        self._told = False
        self._detached = False  # one takes no gradient, as a weight that is shared does

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "stepped":
            self._stepped = f"{type(event.optimizer).__name__}.step() at {place(event.line)}"
            self._steps += 1

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None:
            return
        if call.name in _SHARES and call.results and call.operands and self.facts.name_of(call.operands[0]):
            self._kept.put(call.results[0], self._steps, call.name, line_of(call.lines))
        elif plain(call.name) in _COMPARES and len(call.operands) == 2 and self._steps:
            self._compare(call)

    def _compare(self, call: OperatorCall) -> None:
        one, other = call.operands
        line = line_of(call.lines)
        weight = next((each for each in (one, other) if self.facts.name_of(each)), None)
        if (
            weight is None
            or line is None
            or _ON_PURPOSE.search(self.facts.text_of(line))
            or not self._is_one(one, other)
        ):
            return
        marks = [found for each in (one, other) if (found := self._kept.of(each)) is not None]
        texts = _operands(line)
        if len(texts) != 2 or len({ast.unparse(each) for each in texts}) == 1:  # ``w - w``
            return
        if marks:
            if all(each.what == self._steps for each in marks):
                return
            kept = marks[0].line
        else:
            kept = next(filter(None, (_kept_at(line, each) for each in texts)), None)
        meta = self.facts.backend.meta
        self._detached = one is not other and not all(meta(each).requires_grad for each in (one, other))
        if kept is not None and kept != line and "Parameter(" not in self.facts.text_of(kept):
            self._tell(call, line, kept, weight)

    def _is_one(self, one: Any, other: Any) -> bool:
        if one is other or shape(one) != shape(other) or span_of(one) == EVERYWHERE:
            return one is other
        storages = self.facts.backend.storages
        where = {at for at, _ in storages(one)}
        return bool(where) and where == {at for at, _ in storages(other)} and span_of(one) == span_of(other)

    def _tell(self, call: OperatorCall, line: SourceLine, kept: SourceLine, weight: Any) -> None:
        self._told = True
        facts, name = self.facts, self.facts.title_of(weight)
        message = (
            f"{place(line)} compares {name} with itself, so that the difference is always 0: what {place(kept)} keeps "
            f"is the weight's own memory, and {self._stepped} has changed it, too; keep a clone()"
        )
        shared = "whether a copy of before is meant decides it: weights that are shared are one memory"
        severity, sure = ("error", 0.88) if self._detached else ("note", 0.49)
        evidence = [
            *([] if self._detached else [shared]),
            f"{place(kept)} keeps it: {facts.text_of(kept)}",
            f"both operands of {call.name} at {place(line)} lie in one memory: {facts.text_of(line)}",
        ]
        facts.tell(
            Finding(
                0, "silent-overwrite", severity, sure, message, iteration=facts.iteration + 1, forward=line,
                cause=facts.cause(kept), evidence=evidence, next=[f"b {place(kept)}", f"b {place(line)}"],
            )
        )  # fmt: skip


def _filled_at(file: str, attribute: str) -> SourceLine | None:
    """The only line that puts something into an attribute by a key: ``self.start[name] = w.detach()``."""
    found = [
        node.lineno for node in nodes_of(file) if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Subscript) and isinstance(each.value, ast.Attribute)
                and each.value.attr == attribute for each in node.targets)
    ]  # fmt: skip
    if len(found) != 1:
        return None
    return SourceLine(file, found[0], getattr(scope_at(file, found[0]), "name", "<module>"))


def _operands(line: SourceLine) -> list[ast.expr]:
    """Those of the difference on a line, where there is one alone."""
    found: list[list[ast.expr]] = []
    for node in nodes_of(line.file):
        if getattr(node, "lineno", 0) != line.line:
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            found.append([node.left, node.right])
        elif isinstance(node, ast.Call) and called_name(node) in _COMPARES and len(node.args) >= 2:
            found.append(node.args[:2])
    return found[0] if len(found) == 1 else []


def _kept_at(line: SourceLine, operand: ast.expr) -> SourceLine | None:
    """The line that gave the container of an operand (``start`` of ``start[name]``, ``self.start``) what it holds: of a
    function of the same file that makes it, the line that returns it. None for a variable of a loop."""
    while isinstance(operand, ast.Subscript):
        operand = operand.value
    if isinstance(operand, ast.Attribute):
        return _filled_at(line.file, operand.attr) or assigned(line.file, operand.attr)
    made = assigned_before(line.file, line.line, operand.id) if isinstance(operand, ast.Name) else None
    if made is None or not isinstance(made[1], ast.Assign):
        return None
    at, function = made[0], getattr(scope_at(line.file, line.line), "name", "<module>")
    called = called_name(made[1].value)
    tree = tree_of(line.file)
    for node in ast.walk(tree) if tree is not None and called else ():
        if isinstance(node, ast.FunctionDef) and node.name == called:
            returned = returns_of(node)
            if len(returned) == 1:
                at, function = returned[0].lineno, node.name
    return SourceLine(line.file, at, function)
