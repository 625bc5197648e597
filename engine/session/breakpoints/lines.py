"""Why a line of the program made no node, from its source as the file is now. On the thread that holds the graph."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Collection

from adbg.engine.names import file_matches
from adbg.engine.outside import own
from adbg.engine.places import parsed

_LARGEST = 20_000  # lines of a file that is parsed: some 0.5 s
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def loaded_file(pattern: str) -> str:
    """The file of an imported module that ``pattern`` names; "" for none. Modules are not asked: some import then."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(".py") and file_matches(pattern, file):
            return file
    return ""


def why_none(file: str, line: int, made: Collection[int]) -> str:
    """In a few words, with ``made``: the lines of ``file`` that made nodes; "" where the file cannot be read."""
    lines = linecache.getlines(file)
    if not lines or len(lines) > _LARGEST:
        return ""
    if line > len(lines):
        return f"that file has {len(lines)} lines"
    text = lines[line - 1].strip()
    if not text:
        return "that line is empty"
    try:
        tree = parsed("".join(lines))
    except own(SyntaxError, ValueError, RecursionError):
        return ""
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _first(node) <= line <= _last(node)]
    if not around or (text.startswith("#") and not isinstance(around[-1], ast.Expr)):
        return "that line is a comment" if text.startswith("#") else ""
    return _of_statement(around, made)


def _of_statement(around: list[ast.stmt], made: Collection[int]) -> str:
    """``around``: the statements that a line is in, the innermost one last."""
    statement = around[-1]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return "that line is text, a docstring"
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return "that line is an import"
    if isinstance(statement, _NAMED):
        kind = "class" if isinstance(statement, ast.ClassDef) else "function"
        return f"that line only defines the {kind} {statement.name}, whose lines make nodes when they run"
    first, last = statement.lineno, _last(statement)
    simple = not hasattr(statement, "body")
    if simple and last > first and any(first <= each <= last for each in made):
        return f"that line is part of the statement of lines {first} to {last}"
    function = next((node for node in reversed(around) if isinstance(node, _FUNCTION)), None)
    if function is not None and not any(function.lineno <= each <= _last(function) for each in made):
        return f"no line of {function.name}() did: it did not run for this backward, or computed without gradients"
    return "nothing on that line computes what needs a gradient"


def _first(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _last(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
