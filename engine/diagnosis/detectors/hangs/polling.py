"""Loops that only look whether something has changed: who goes round in one does nothing else."""

from __future__ import annotations

import ast
import functools
import os

from adbg.engine.diagnosis.source import called_name, tree_of
from adbg.engine.outside import suppress
from adbg.engine.proc import Proc

# What asks a thread, a lock, a queue or a process of this program. Not what asks a clock, a file or a network: these
# change by themselves.
_ASKS = frozenset({
    "is_set", "is_alive", "empty", "full", "qsize", "locked", "done", "running", "ready", "len", "any", "all", "bool",
})  # fmt: skip
_SAYS = frozenset({"sleep", "print", "debug", "info", "warning", "write", "flush", "yield_now"})
_VALUES = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp,
    ast.GeneratorExp, ast.ListComp, ast.comprehension, ast.Call, ast.Tuple, ast.List, ast.JoinedStr, ast.FormattedValue,
    ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.keyword,
)  # fmt: skip


@functools.lru_cache(256)
def polls_at(file: str, line: int) -> int:
    """The first line of the innermost loop around that line, where all that it does is to look again; 0 elsewhere."""
    found: ast.While | ast.For | None = None
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.While, ast.For, ast.FunctionDef)) and node.lineno <= line <= (node.end_lineno or 0):
            found = node if isinstance(node, (ast.While, ast.For)) else None  # walked from the outside in
    if not isinstance(found, ast.While) or found.orelse or not _asks(found.test):
        return 0
    asked = {each.id for each in ast.walk(found.test) if isinstance(each, ast.Name)}
    counted = {
        each.target.id
        for each in ast.walk(found)
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name)
    }
    return 0 if asked & counted or not all(map(_changes_nothing, found.body)) else found.lineno


def _asks(test: ast.expr) -> bool:
    return all(
        isinstance(each, _VALUES) and (not isinstance(each, ast.Call) or called_name(each) in _ASKS)
        for each in ast.walk(test)
    )


def _changes_nothing(statement: ast.stmt) -> bool:
    """It waits, counts or prints."""
    if isinstance(statement, ast.If):
        return _asks(statement.test) and all(map(_changes_nothing, [*statement.body, *statement.orelse]))
    if isinstance(statement, ast.Expr):
        value = statement.value
        return isinstance(value, ast.Constant) or called_name(value) in _SAYS
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Name) and isinstance(statement.value, (ast.Constant, ast.Name))
    return isinstance(statement, (ast.Pass, ast.Continue))


def spent(thread: int) -> float:
    """CPU seconds of a thread of this process so far, by its number of the system's; 0.0 where that does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return Proc(os.getpid()).spent(thread)
    return 0.0


def woken(thread: int) -> int:
    """How often it has waited so far, by the system's count; 0 where that does not tell."""
    with suppress(OSError, ValueError):
        return int(Proc(os.getpid()).status(thread).get("voluntary_ctxt_switches", 0))
    return 0
