"""Several backwards of one iteration: whether two calls belong to the same one, by where they were called from and what
the source has around them."""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterator, Sequence

from adbg.engine.diagnosis.source import inside, scope_at
from adbg.engine.python.user_code import USER, framework_roots, owner_of
from adbg.engine.types import SourceLine

_MOST = 16  # functions of the program that are looked at, from the innermost outwards
_STEPS = frozenset({"step", "minimize"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Place = tuple[types.CodeType, int]


def calls_now() -> tuple[Place, ...]:
    """The program's functions that run on this thread and the lines that they are at, innermost first."""
    found: list[Place] = []
    roots = framework_roots()
    frame = sys._getframe(1)
    at: types.FrameType | None = frame
    while at is not None and len(found) < _MOST:
        if owner_of(at, roots) == USER and not _is_inline(at.f_code.co_name):
            found.append((at.f_code, at.f_lineno))
        at = at.f_back
    return tuple(found)


def first_of(before: Sequence[Place], now: Sequence[Place], made: Sequence[SourceLine]) -> SourceLine | None:
    """The line of the earlier one of two backward calls between which no optimizer stepped, where both belong to the
    same iteration; None where they do not, or nothing says so. ``made``: the lines of the program that made what both
    run through, outermost first."""
    if not before or not now:
        return None
    if before == now:
        return _line(now[0]) if _around(now, [each for each in made if not _is_inline(each.function)]) else None
    for mine, theirs in zip(before[::-1], now[::-1]):
        if mine != theirs:  # called twice in one run of a function: by a later line the second time
            return _line(mine) if mine[0] is theirs[0] and mine[1] < theirs[1] else None
    return None


def is_behind(made: Sequence[SourceLine], call: Sequence[Place]) -> bool:
    """Whether what made a node stands behind a backward call in the function that both were called from. ``made``: its
    lines of the program, outermost first."""
    for mine, place in zip([each for each in made if not _is_inline(each.function)], call[::-1]):
        theirs = _line(place)
        if mine.file != theirs.file or scope_at(mine.file, mine.line) is not scope_at(theirs.file, theirs.line):
            return False
        if mine.line != theirs.line:
            return mine.line > theirs.line
    return False


def _around(now: Sequence[Place], made: Sequence[SourceLine]) -> bool:
    """Whether the innermost loop around the call runs several losses of one iteration: no step is in it, and what they
    share was made outside of it, in the same run of the function, or in what the loop goes through."""
    for place, (code, number) in enumerate(now):
        line = _line((code, number))
        scope = scope_at(line.file, line.line)
        if scope is None:
            return False
        loops = [node for node in _loops(scope) if _first(node) <= number <= (node.end_lineno or 0)]  # outermost first
        if not loops:
            if _steps(scope):
                return False
            continue
        outer = [_line(each) for each in now[:place:-1]]
        here = made[len(outer)] if len(made) > len(outer) else None
        known = [(each.file, each.line) for each in made[: len(outer)]]
        if here is None or known != [(each.file, each.line) for each in outer]:
            return False
        if here.file != line.file or scope_at(here.file, here.line) is not scope:
            return False
        loop, rest = loops[-1], loops[:-1]
        again = not isinstance(loop, _COMPREHENSIONS) and _first(loop) <= here.line <= (loop.end_lineno or 0)
        if again or _steps(loop):
            return False
        if rest:
            return _first(rest[-1]) <= here.line <= (rest[-1].end_lineno or 0)
        return _steps(scope)
    return False


def _loops(scope: ast.AST) -> Iterator[ast.For | ast.AsyncFor | ast.While | ast.expr]:
    found = [node for node in inside(scope) if isinstance(node, (ast.For, ast.AsyncFor, ast.While, *_COMPREHENSIONS))]
    yield from sorted(found, key=lambda node: (_first(node), -(node.end_lineno or 0)))


def _first(loop: ast.AST) -> int:
    """The first line that runs several times."""
    body = getattr(loop, "body", None)
    if isinstance(body, list):
        return int(body[0].lineno)
    return int(getattr(loop, "lineno", 0))


def _steps(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _STEPS
        for each in ast.walk(node)
    )


def _is_inline(function: str) -> bool:
    """A comprehension, which newer Pythons run within the function around it."""
    return function.rpartition(".")[2] in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def _line(place: Place) -> SourceLine:
    code, number = place
    file = code.co_filename
    return SourceLine(file if file.startswith("<") else os.path.abspath(file), number, code.co_name)
