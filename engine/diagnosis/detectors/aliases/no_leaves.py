"""Names that stand for what an operator made of a leaf, where the program takes it for the leaf."""

from __future__ import annotations

import ast
import functools
from types import TracebackType
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place
from adbg.engine.diagnosis.detectors.graphs.flow import UNRECORDED, Cut, Flow, Known, bits_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned_names, nodes_of, scope_at
from adbg.engine.frames import locals_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_Target = (ast.Name, ast.Attribute, ast.Subscript)


@functools.lru_cache(1024)
def _renewed_at(file: str, line: int) -> tuple[int, str] | None:
    """(first line, target) of the statement at that line, where it gives ``w`` what it computes of ``w`` and of its
    gradient: ``w = w - rate * w.grad``, ``w -= rate * w.grad``, ``weights = [w - rate * w.grad for w in weights]``."""
    for node in nodes_of(file):
        if not isinstance(node, (ast.Assign, ast.AugAssign)) or not _covers(node, line):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) != 1 or not isinstance(targets[0], _Target):
            continue
        target = ast.unparse(targets[0])
        again = isinstance(node, ast.AugAssign) or target in map(ast.unparse, ast.walk(node.value))
        if again and (_gradients(node.value) or _are_gradients(file, line, node.value)):
            return node.lineno, target
    return None


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _gradients(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "grad" for each in ast.walk(node))


def _are_gradients(file: str, line: int, value: ast.expr) -> bool:
    """``w = w - step``, ``step`` being made of a gradient in the same function."""
    scope = scope_at(file, line)
    names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
    made = (each for each in ast.walk(scope) if isinstance(each, ast.Assign)) if scope is not None else ()
    return any(names.intersection(assigned_names(each)) for each in made if _gradients(each.value))


def asked_in(trace: TracebackType | None) -> list[tuple[str, Any]]:
    """(name, value) of what the line that raised asks for its gradient, in the innermost frame of the program."""
    last = None
    while trace is not None:
        last = trace if is_programs(trace.tb_frame.f_code.co_filename) else last
        trace = trace.tb_next
    if last is None:
        return []
    known = {**last.tb_frame.f_globals, **locals_of(last.tb_frame)}
    grads = (each for each in nodes_of(last.tb_frame.f_code.co_filename) if isinstance(each, ast.Attribute))
    names = [
        each.value.id for each in grads
        if each.attr == "grad" and isinstance(each.value, ast.Name)
        and each.lineno <= last.tb_lineno <= (each.end_lineno or each.lineno)
    ]  # fmt: skip
    return [(name, known[name]) for name in names if name in known]


def overwritten_at(line: SourceLine) -> SourceLine | None:
    """The next statement of the same block that gives the name that the one at ``line`` gave a value another one, which
    is not made of it; None where the name is read before that."""
    for parent in nodes_of(line.file):
        for body in (getattr(parent, "body", ()), getattr(parent, "orelse", ())):
            statements: list[ast.stmt] = body if isinstance(body, list) else []  # a lambda's is an expression
            at = _statement_in(statements, line.line)
            if at is not None:
                found = _given_again(statements[at:])
                return SourceLine(line.file, found, line.function) if found else None
    return None


def _statement_in(body: list[ast.stmt], line: int) -> int | None:
    return next((at for at, each in enumerate(body) if isinstance(each, ast.Assign) and _covers(each, line)), None)


def _given_again(body: list[ast.stmt]) -> int:
    names = assigned_names(body[0])
    for statement in body[1:] if len(names) == 1 else ():
        reads = any(
            isinstance(each, ast.Name) and each.id == names[0] and isinstance(each.ctx, ast.Load)
            for each in ast.walk(statement)
        )
        if reads or isinstance(statement, ast.AugAssign):
            return 0
        if assigned_names(statement) == names:
            return statement.lineno
    return 0


def line_renewed(cut: Cut) -> SourceLine | None:
    """Where an update under ``no_grad`` takes the place of the leaf, instead of being written into it."""
    line = line_of(cut.lines) if cut.why == UNRECORDED and cut.copies else None
    found = _renewed_at(line.file, line.line) if line is not None else None
    return SourceLine(line.file, found[0], line.function) if line is not None and found is not None else None


def words_renewed(facts: Facts, cut: Cut) -> str:
    """ "" where it is another cut."""
    line = line_renewed(cut)
    found = _renewed_at(line.file, line.line) if line is not None else None
    if found is None:
        return ""
    into = "`-=`, `copy_`" if facts.backend.name == "torch" else "`set_value`; `-=` makes a new tensor, too"
    return f"{place(line)} makes {found[1]} a new tensor, which carries none: write into the old one ({into})"


def listed(line: SourceLine | None) -> list[str]:
    """No breakpoint: a line that cuts the graph makes no node."""
    return [f"list {place(line)}", "info params"] if line is not None else ["info params"]


class NoLeaves:
    """Tensors that have no ``.grad`` because an operator made them: a part of the detector of missing gradients."""

    def __init__(self, facts: Facts, flow: Flow) -> None:
        self._facts = facts
        self._flow = flow

    def names(self, bits: int) -> str:
        """Of leaves."""
        found = []
        for leaf in self._flow.leaves.values():
            value = leaf.ref()
            if value is not None and bits >> leaf.place & 1:
                found.append(self._facts.title_of(value) or f"the leaf of {place(leaf.born)}")
        return self._facts.some(found) if found else ""

    def read(self, call: OperatorCall) -> None:
        """The script reads ``.grad``."""
        value = call.operands[0]
        known = self._flow.of(value)
        if known is None or value.is_leaf or getattr(value, "retains_grad", False) or call.results:
            return
        self.tell(known, f".grad is read at {place(line_of(call.lines))} and is None", "a tensor")

    def uncaught(self, error: BaseException) -> None:
        if "NoneType" in str(error):
            self._asked(error)
        if "non-leaf" not in str(error):
            return
        trace = error.__traceback__
        while trace is not None:
            for value in locals_of(trace.tb_frame).values() if trace.tb_next is None else ():
                is_made = self._facts.backend.is_tensor(value) and not value.is_leaf
                known = self._flow.of(value) if is_made else None
                if known is not None:
                    self.tell(known, f"raised: {error}", "what the optimizer is given")
                    return
            trace = trace.tb_next

    def _asked(self, error: BaseException) -> None:
        """``w.grad.zero_()``, where ``w.grad`` is None."""
        facts, backend = self._facts, self._facts.backend
        for name, value in asked_in(error.__traceback__):
            known = self._flow.of(value) if backend.is_tensor(value) else None
            if known is None or backend.gradient_of(value) is not None:
                continue
            if not value.is_leaf:
                self.tell(known, f"raised: {type(error).__name__}: {error}", name)
                return
            for at in bits_of(known.cuts):
                cut = self._flow.cuts[at]
                line = line_renewed(cut)
                if line is not None:
                    message = f"{name} has no gradient: {words_renewed(facts, cut)}"
                    proof = f"{name}.grad is None there: {type(error).__name__}: {error}"
                    facts.tell(
                        Finding(0, "no-gradient", "error", 0.95, message, None, None, None, line, facts.cause(line),
                                [proof], listed(line))
                    )  # fmt: skip
                    return

    def tell(self, known: Known, proof: str, what: str) -> None:
        facts = self._facts
        line = known.line
        message = f"{what} has no .grad: {known.name} at {place(line)} made it, so it is no leaf"
        evidence = [
            proof,
            f"{known.name} at {place(line)} made it of {self.names(known.values) or 'a leaf'}, which is the leaf",
        ]
        facts.tell(
            Finding(0, "non-leaf-gradient", "error", 0.9, message, None, None, None, line, facts.cause(line), evidence,
                    listed(line))
        )  # fmt: skip
