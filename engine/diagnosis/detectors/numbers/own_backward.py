"""The line of a custom function's backward that most likely makes what is not finite: read from its source."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from typing import Any

from adbg.engine.diagnosis.source import called_name
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
_CALLS = {"sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "div", "divide", "exp", "acos", "asin"}


def unwritten(function: Any) -> SourceLine | None:
    """The only line of ``function.backward`` that takes memory in which nothing was written."""
    line, sure = suspect(function)
    text = linecache.getline(line.file, line.line) if line is not None and sure else ""
    return line if any(f"{name}(" in text for name in _UNWRITTEN) else None


def suspect(function: Any) -> tuple[SourceLine | None, bool]:
    """The only line of ``function.backward`` that takes memory in which nothing was written, or where there is none,
    that divides or takes a root, a logarithm or an exponential, and True; else the line of its ``def``, and False. None
    where there is no source."""
    with suppress(Exception):
        backward = inspect.unwrap(function.backward)
        source, first = inspect.getsourcelines(backward)
        file = inspect.getsourcefile(backward) or backward.__code__.co_filename
        tree = ast.parse(textwrap.dedent("".join(source)))
        expressions = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
        unwritten = {node.lineno + first - 1 for node in expressions if called_name(node) in _UNWRITTEN}
        lines = unwritten or {node.lineno + first - 1 for node in expressions if _singular(node)}
        body = next(node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        sure = len(lines) == 1
        return SourceLine(file, lines.pop() if sure else body.lineno + first - 1, backward.__name__), sure
    return None, False


def _singular(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return not (isinstance(node.right, ast.Constant) and node.right.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = node.right
        return isinstance(power, ast.UnaryOp) or (isinstance(power, ast.Constant) and power.value not in (1, 2, 3, 4))
    return called_name(node) in _CALLS
