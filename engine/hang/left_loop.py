"""Where a rank has left a loop that the others go on in: a condition of its own data (a loss of its shard, patience
that ran out), or a loop that is shorter there. Read from the file as it is now; a file that cannot be read says
nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from adbg.engine.hang.conditioned import calls_of, function_at
from adbg.engine.places import source_tree
from adbg.engine.types import SourceLine

_DEEP = 3  # calls between the loop and the collective
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class LeftLoop:
    """``loop``: the line where it begins, ``over``: what it goes through, or its condition. ``leaves``: the line of the
    condition under which it is left, and ``text``, the condition; None where it may also have come to its end.
    ``shorter``: a loop in it around the collective, over what may be less on that rank."""

    loop: SourceLine
    over: str
    leaves: SourceLine | None = None
    text: str = ""
    shorter: str = ""


def left_loop(goes_on: SourceLine, behind: SourceLine) -> LeftLoop | None:
    """``goes_on``: where the others call the collective that the rank at ``behind`` did not come to again; in the same
    function, or in one that this calls at one place."""
    tree = source_tree(behind.file)
    if tree is None or goes_on.file != behind.file:
        return None
    function = function_at(tree, behind.line)
    lines = set(_reached(tree, function, goes_on.line, 0))
    if len(lines) != 1:
        return None
    (line,) = lines
    loops = [
        node for node in _own(function or tree)
        if isinstance(node, _LOOPS) and node.lineno <= line <= _end(node) < behind.line
    ]  # fmt: skip
    loops.sort(key=lambda node: node.lineno)  # outer ones first
    name = function.name if function is not None else "<module>"

    def at(number: int) -> SourceLine:
        return SourceLine(behind.file, number, name)

    for loop in loops:
        tests = _tests(loop)
        if tests and _is_as_long(loop):
            shorter = next((_over(each) for each in loops if each.lineno > loop.lineno and not _is_as_long(each)), "")
            return LeftLoop(at(loop.lineno), _over(loop), at(tests[0].lineno), _text(tests), shorter)
    return LeftLoop(at(loops[-1].lineno), _over(loops[-1]), None, _text(_tests(loops[-1]))) if loops else None


def _tests(loop: ast.For | ast.AsyncFor | ast.While) -> list[ast.expr]:
    """The conditions under which it is left; [] where it is left under none, too."""
    tests = list(_leaving(loop.body, None))
    if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
        tests.insert(0, loop.test)
    known = [each for each in tests if each is not None]
    return known if len(known) == len(tests) else []


def _is_as_long(loop: ast.stmt) -> bool:
    """On every rank, unless it is left: a loop over data may have less of it on one."""
    if isinstance(loop, ast.For):
        given = loop.iter.args if isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "range" else []
        return bool(given) and all(isinstance(each, (ast.Constant, ast.Name, ast.Attribute)) for each in given)
    return isinstance(loop, ast.While)


def _text(tests: list[ast.expr]) -> str:
    return " or ".join(map(ast.unparse, tests))


def _reached(tree: ast.Module, function: ast.AST | None, line: int, depth: int) -> Iterator[int]:
    """The lines of ``function`` that lead to a line."""
    inner = function_at(tree, line)
    if inner is function:
        yield line
    elif inner is not None and depth < _DEEP:
        for each in calls_of(tree, inner):
            yield from _reached(tree, function, each, depth + 1)


def _own(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function, without those of functions in it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, _SCOPES):
            yield from _own(node)


def _leaving(body: list[ast.stmt], test: ast.expr | None) -> Iterator[ast.expr | None]:
    """The condition of each ``break`` of a loop's own: None of one that stands under none."""
    for node in body:
        if isinstance(node, ast.Break):
            yield test
        elif isinstance(node, ast.If):
            yield from _leaving(node.body, node.test)
            yield from _leaving(node.orelse, node.test)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _leaving(node.body, test)
        elif isinstance(node, ast.Try):
            parts = (node.body, node.orelse, node.finalbody, *(each.body for each in node.handlers))
            for part in parts:
                yield from _leaving(part, test)
        elif isinstance(node, _LOOPS):
            yield from _leaving(node.orelse, test)
        else:
            for case in getattr(node, "cases", ()):  # of a match statement: the pattern is no condition that is shown
                yield from _leaving(case.body, None)


def _over(loop: ast.stmt) -> str:
    if isinstance(loop, ast.While):
        return f"while {ast.unparse(loop.test)}"
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
    return ""


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
