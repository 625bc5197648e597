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
    r"\b(?:get_|local_|global_|node_|data_|dp_|tp_|pp_|my_|_)*rank(?:_id)?\b", re.IGNORECASE
)  # no low_rank
_MAIN = re.compile(
    r"\bis_?(?:local_)?(?:main|master)|\b(?:main|master)_process\b|\bis_?rank_?(?:0|zero)", re.IGNORECASE
)
_LEAVES = (ast.Return, ast.Continue, ast.Break)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Condition:
    """``call``: the line under the condition that leads to the collective; ``test``: that of the condition, and its
    text. It lets rank ``number`` alone come there, or, ``inverted``, all others."""

    call: SourceLine
    test: SourceLine
    text: str
    number: int = 0
    inverted: bool = False

    def lets(self, rank: int) -> bool:
        return (rank == self.number) is not self.inverted


def condition_of(place: SourceLine) -> Condition | None:
    """None where it is called without one, or from a place that is not seen."""
    tree = source_tree(place.file)
    return _above(tree, place.file, place.line, 0) if tree is not None else None


def _above(tree: ast.Module, file: str, line: int, depth: int) -> Condition | None:
    function = function_at(tree, line)
    name = function.name if function is not None else "<module>"
    found = next(_tests(function or tree, line), None)
    if found is not None:
        test, number, inverted = found
        return Condition(
            SourceLine(file, line, name), SourceLine(file, test.lineno, name), ast.unparse(test), number, inverted
        )
    if function is None or depth >= _DEEP:
        return None
    above = [_above(tree, file, each, depth + 1) for each in calls_of(tree, function)]
    return above[0] if above and all(above) else None


def calls_of(tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
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


def _tests(scope: ast.AST, line: int) -> Iterator[tuple[ast.expr, int, bool]]:
    """The conditions on the rank that a line stands under, or behind which the others have left, and whom each lets
    there."""
    for body in _bodies(scope):
        for statement in body:
            inside = statement.lineno <= line <= (statement.end_lineno or 0)
            if isinstance(statement, ast.If):
                yield from _of(statement, line, inside)
            if inside:
                if not isinstance(statement, _FUNCTIONS):
                    yield from _tests(statement, line)
                return


def _of(statement: ast.If, line: int, inside: bool) -> Iterator[tuple[ast.expr, int, bool]]:
    test, first = statement.test, statement.body[0].lineno
    within = inside and first <= line <= (statement.body[-1].end_lineno or 0)
    parts = test.values if within and isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    lets = next(filter(None, map(_lets, parts)), None)
    if lets is None:
        return
    other = (inside and not within and line >= first) or (
        not inside and statement.lineno < line and isinstance(statement.body[-1], _LEAVES) and not statement.orelse
    )
    if within or other:
        yield test, lets[0], lets[1] is not other


def _lets(test: ast.expr) -> tuple[int, bool] | None:
    """(N, False) of a test that is true on rank N alone, (N, True) of one that is true on all others. None of what is
    not known, as ``rank < world`` or ``local_rank != -1``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _lets(test.operand)
        return (inner[0], not inner[1]) if inner is not None else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        number = test.comparators[0]
        if isinstance(number, ast.Constant) and type(number.value) is int and _RANK.search(ast.unparse(test.left)):
            return number.value, isinstance(test.ops[0], ast.NotEq)
        return None
    if not isinstance(test, (ast.Name, ast.Attribute, ast.Call)):
        return None
    text = ast.unparse(test.func if isinstance(test, ast.Call) else test)
    if _MAIN.search(text):
        return 0, False
    return (0, True) if _RANK.search(text) else None


def _bodies(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(scope, name, None)
        if isinstance(body, list) and all(isinstance(each, ast.stmt) for each in body):
            yield body
    for handler in getattr(scope, "handlers", ()):
        yield handler.body


def function_at(tree: ast.Module, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost."""
    found = None
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0):
            found = node
    return found
