"""Where a program has NumPy keep quiet of divisions by 0, logarithms of 0 and the like: read from its source."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from adbg.engine.diagnosis.detectors.earlier.together import calls_now
from adbg.engine.diagnosis.source import called_name, scope_at, tree_of
from adbg.engine.types import SourceLine

_CALLS = frozenset({
    "log", "log2", "log10", "log1p", "sqrt", "power", "divide", "true_divide", "reciprocal", "arccos", "arcsin",
    "arctanh", "exp", "expm1",
})  # fmt: skip


def silenced() -> SourceLine | None:
    """The first line that divides, or takes a root or a logarithm, of the only block under ``errstate(… "ignore")`` of
    NumPy's in the files of the functions that run here; None where there are several, or none."""
    found = [line for file in sorted(_files()) for line in _blocks(file)]
    return found[0] if len(found) == 1 else None


def is_copy(line: SourceLine) -> bool:
    """Whether the statement at a line only gives on what it was given: ``self.rows = rows``, or appends that."""
    tree = tree_of(line.file)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, (ast.Assign, ast.Expr)) or not node.lineno <= line.line <= (node.end_lineno or 0):
            continue
        given: list[ast.expr] = [node.value]
        if isinstance(node, ast.Expr):
            given = node.value.args if isinstance(node.value, ast.Call) else []
        inner = [part for each in given for part in ast.walk(each)]
        return not any(isinstance(each, (ast.Call, ast.BinOp, ast.UnaryOp)) for each in inner)
    return False


def _files() -> set[str]:
    return {os.path.abspath(code.co_filename) for code, _ in calls_now()}


def _blocks(file: str) -> Iterator[SourceLine]:
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.With) and any(_ignores(item.context_expr) for item in node.items):
            lines = [getattr(each, "lineno", 0) for part in node.body for each in ast.walk(part) if _makes(each)]
            line = min(lines, default=node.body[0].lineno)
            yield SourceLine(file, line, getattr(scope_at(file, line), "name", "<module>"))


def _ignores(expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call) or called_name(expression) != "errstate":
        return False
    return any(isinstance(each.value, ast.Constant) and each.value.value == "ignore" for each in expression.keywords)


def _makes(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Div, ast.Pow))
    return called_name(node) in _CALLS
