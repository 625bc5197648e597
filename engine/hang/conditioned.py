"""Whether only some ranks come to a collective, by its source: the call, or all calls of the function around it, stand
under a condition on the rank. Read from the file as it is now; a file that cannot be read says nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from adbg.engine.places import source_tree
from adbg.engine.types import SourceLine

_DEEP = 3  # calls between the condition and the collective
_RANK = re.compile(
    r"\b(?:get_|local_|global_|node_|data_|dp_|tp_|pp_|my_|_)*rank(?:_id|_zero)?\b|\bis_?(?:local_)?(?:main|master|rank)"
    r"|\b(?:main|master)_process\b",
    re.IGNORECASE,
)  # not low_rank, nor rank_loss
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Condition:
    """``call``: the line under the condition that leads to the collective; ``test``: that of the condition, and its
    text."""

    call: SourceLine
    test: SourceLine
    text: str


def condition_of(place: SourceLine) -> Condition | None:
    """None where it is called without one, or from a place that is not seen."""
    tree = source_tree(place.file)
    return _above(tree, place.file, place.line, 0) if tree is not None else None


def _above(tree: ast.Module, file: str, line: int, depth: int) -> Condition | None:
    function = _function_at(tree, line)
    name = function.name if function is not None else "<module>"
    test = next(_tests(function or tree, line), None)
    if test is not None:
        text = ast.unparse(test)
        return Condition(SourceLine(file, line, name), SourceLine(file, test.lineno, name), text)
    if function is None or depth >= _DEEP:
        return None
    found = [_above(tree, file, each, depth + 1) for each in _calls(tree, function)]
    return found[0] if found and all(found) else None


def _calls(tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """The lines that call it, by its name: not one of a module's (``torch.save`` in a method ``save``)."""
    modules = {
        (name.asname or name.name).partition(".")[0]
        for each in ast.walk(tree) if isinstance(each, (ast.Import, ast.ImportFrom)) for name in each.names
    }  # fmt: skip
    for each in ast.walk(tree):
        called = each.func if isinstance(each, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == function.name:
            if not (isinstance(called.value, ast.Name) and called.value.id in modules):
                yield called.lineno
        elif isinstance(called, ast.Name) and called.id == function.name:
            yield called.lineno


def _tests(scope: ast.AST, line: int) -> Iterator[ast.expr]:
    """The conditions on the rank that a line stands under, or behind which the others have left."""
    for body in _bodies(scope):
        for statement in body:
            inside = statement.lineno <= line <= (statement.end_lineno or 0)
            if isinstance(statement, ast.If) and _RANK.search(ast.unparse(statement.test)):
                within = inside and line >= statement.body[0].lineno
                left = not inside and statement.lineno < line and isinstance(statement.body[-1], _LEAVES)
                if within or left:
                    yield statement.test
            if inside:
                if not isinstance(statement, _FUNCTIONS):
                    yield from _tests(statement, line)
                return


def _bodies(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(scope, name, None)
        if isinstance(body, list) and all(isinstance(each, ast.stmt) for each in body):
            yield body
    for handler in getattr(scope, "handlers", ()):
        yield handler.body


def _function_at(tree: ast.Module, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost."""
    found = None
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0):
            found = node
    return found
