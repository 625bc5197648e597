"""The line of a custom function's backward that most likely makes what is not finite: read from its source."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
import types
from collections.abc import Callable
from typing import Any

from adbg.engine.diagnosis.source import called_name
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_library
from adbg.engine.places import parsed
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
    that divides or takes a root, a logarithm or an exponential, and True; where it has neither, that of a function of
    the program's which it calls; else the line of its ``def``, and False. None where there is no source."""
    with suppress(Exception):
        backward = inspect.unwrap(function.backward)
        own = _Source(backward)
        for wanted in (_is_unwritten, _singular):
            lines = own.lines(wanted)
            for helper in own.called(function) if not lines else ():
                with suppress(Exception):
                    lines |= _Source(helper).lines(wanted)
            if len(lines) == 1:
                return lines.pop(), True
            if lines:
                break
        return SourceLine(own.file, own.body.lineno + own.first - 1, backward.__name__), False
    return None, False


class _Source:
    """Of one function."""

    def __init__(self, function: Any) -> None:
        source, self.first = inspect.getsourcelines(function)
        self.file = inspect.getsourcefile(function) or function.__code__.co_filename
        tree = parsed(textwrap.dedent("".join(source)))
        self.body = next(node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        self._function = function

    def lines(self, wanted: Callable[[ast.expr], bool]) -> set[SourceLine]:
        found = [node for node in ast.walk(self.body) if isinstance(node, ast.expr) and wanted(node)]
        name = self._function.__name__
        return {SourceLine(self.file, node.lineno + self.first - 1, name) for node in found}

    def called(self, owner: Any) -> list[types.FunctionType]:
        """Functions of the program's that it calls by a global name, or as methods of its own class."""
        found = []
        for node in ast.walk(self.body):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name):
                found.append(self._function.__globals__.get(called.id))
            elif isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == owner.__name__:
                plain = vars(owner).get(called.attr)
                found.append(getattr(plain, "__func__", plain))
        users = {each for each in found if type(each) is types.FunctionType}
        return [each for each in users if not is_library(each.__code__.co_filename)]


def _is_unwritten(node: ast.expr) -> bool:
    return called_name(node) in _UNWRITTEN


def _singular(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return not (isinstance(node.right, ast.Constant) and node.right.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        power = node.right
        return isinstance(power, ast.UnaryOp) or (isinstance(power, ast.Constant) and power.value not in (1, 2, 3, 4))
    return called_name(node) in _CALLS
