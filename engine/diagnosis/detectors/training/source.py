"""What the source says where no event does: statements between two lines, and names that are never called."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Collection, Iterator

from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine


def place(line: SourceLine | None) -> str:
    """``FILE:LINE`` as a sentence has it."""
    return f"{os.path.basename(line.file)}:{line.line}" if line is not None else "a line that is not known"


def between(first: SourceLine | None, last: SourceLine | None, pattern: str) -> SourceLine | None:
    """The only line that matches ``pattern`` between two lines of one file; else the only one of the file."""
    if first is None or last is None:
        return None
    wanted = re.compile(pattern)
    text = linecache.getlines(first.file)
    every = [number for number, line in enumerate(text, 1) if wanted.search(line.partition("#")[0])]
    inside = [number for number in every if first.file == last.file and first.line < number < last.line]
    found = inside if inside else every
    if len(found) != 1:
        return None
    return SourceLine(first.file, found[0], _function(first.file, found[0]))


def uncalled(file: str, name: str, of: Collection[str] = ()) -> SourceLine | None:
    """A statement ``anything.name`` without parentheses; of the variables or attributes ``of`` alone, where given."""
    for node in _statements(file):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute) and node.value.attr == name:
            if not of or ast.unparse(node.value.value).rpartition(".")[2] in of:
                return SourceLine(file, node.lineno, _function(file, node.lineno))
    return None


def named(file: str, pattern: str) -> bool:
    """Whether the pattern is anywhere in the code of a file."""
    wanted = re.compile(pattern)
    return any(wanted.search(line.partition("#")[0]) for line in linecache.getlines(file))


def assigned(file: str, attribute: str, kind: str = "") -> SourceLine | None:
    """Where ``self.attribute = …`` stands, in class ``kind``."""
    for node in _statements(file):
        if isinstance(node, ast.ClassDef) and (not kind or node.name == kind):
            for inner in ast.walk(node):
                targets = inner.targets if isinstance(inner, ast.Assign) else []
                if isinstance(inner, ast.AnnAssign):
                    targets = [inner.target]
                if any(isinstance(target, ast.Attribute) and target.attr == attribute for target in targets):
                    return SourceLine(file, inner.lineno, _function(file, inner.lineno))  # type: ignore[attr-defined]
    return None


def _tree(file: str) -> ast.Module | None:
    with suppress(SyntaxError, ValueError, RecursionError):
        return ast.parse("".join(linecache.getlines(file)))
    return None


def _statements(file: str) -> Iterator[ast.AST]:
    tree = _tree(file)
    return ast.walk(tree) if tree is not None else iter(())


def _function(file: str, line: int) -> str:
    """The innermost function around a line, as frames name it."""
    found = "<module>"
    for node in _statements(file):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= (node.end_lineno or 0):
            found = node.name
    return found
