"""Several backwards of one iteration: whether two calls belong to the same one, by where they were called from and what
the source has around them."""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Iterator, Sequence

from adbg.engine.diagnosis.source import assigned_on, called_name, inside, nodes_of, scope_at
from adbg.engine.python.user_code import USER, framework_roots, owner_of
from adbg.engine.types import SourceLine

_MOST = 16  # functions of the program that are looked at, from the innermost outwards
_STEPS = frozenset({"step", "minimize"})
_BACKWARDS = frozenset({"backward", "grad"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Place = tuple[types.CodeType, int]
_Loop = ast.For | ast.AsyncFor | ast.While | ast.expr


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


def is_only_backward(now: Sequence[Place]) -> bool:
    """Whether the files of these functions name no other backward than the one that runs, and call none of the
    functions around it twice: what ran before came the same way."""
    files = {line.file for line in map(_line, now)}
    around = [code.co_name for code, _ in now if code.co_name != "<module>"]
    named = [called_name(each) for file in files for each in nodes_of(file) if isinstance(each, ast.Call)]
    return sum(name in _BACKWARDS for name in named) == 1 and all(named.count(name) <= 1 for name in around)


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


def apart(before: Sequence[Place], now: Sequence[Place]) -> SourceLine | None:
    """The line that came to the earlier of two moments, in the function where their ways part; None where that is
    not known."""
    for mine, theirs in zip(before[::-1], now[::-1]):
        if mine != theirs:
            return _line(mine) if mine[0] is theirs[0] else None
    return None


def is_behind(made: Sequence[SourceLine], call: Sequence[Place]) -> bool:
    """Whether what made a node stands after a backward call in the function that both were called from. ``made``: its
    lines of the program, outermost first."""
    for mine, place in zip([each for each in made if not _is_inline(each.function)], call[::-1]):
        theirs = _line(place)
        if mine.file != theirs.file or scope_at(mine.file, mine.line) is not scope_at(theirs.file, theirs.line):
            return False
        if mine.line != theirs.line:
            return mine.line > theirs.line
    return False


def is_before_loop(made: Sequence[SourceLine], call: Sequence[Place]) -> bool:
    """Whether what made a node stands outside of the loop in which an optimizer steps, as the source has it, while a
    backward call is in it: a table that is computed once for all iterations. ``made``: its lines of the program,
    outermost first."""
    places = [_line(each) for each in call[::-1]]
    scopes = [scope_at(each.file, each.line) for each in places]
    for level, (mine, theirs) in enumerate(zip([each for each in made if not _is_inline(each.function)], places)):
        if scopes[level] is None or mine.file != theirs.file or scope_at(mine.file, mine.line) is not scopes[level]:
            return False
        if mine.line == theirs.line:
            continue
        loop = _stepping(scopes[level:], theirs.line)
        if loop is not None and not _first(loop) <= mine.line <= (loop.end_lineno or 0):
            return True
        deeper = range(level + 1, len(places))
        return any(_stepping(scopes[each:], places[each].line) is not None for each in deeper)
    return False


def is_carried(name: str, made: SourceLine, used: SourceLine) -> bool:
    """Whether a line gives ``name`` a value which the next round of its loop begins with, and another line of it goes
    on from that value: ``h = cell(x, h)`` twice."""
    scope = scope_at(made.file, made.line)
    if scope is None or scope_at(used.file, used.line) is not scope:
        return False
    if name not in assigned_on(made.file, made.line) or name not in assigned_on(used.file, used.line):
        return False
    loops = [each for each in _loops(scope) if _first(each) <= made.line <= (each.end_lineno or 0)]
    if not loops:
        return False
    last = loops[-1].end_lineno or 0
    named = [
        each for each in inside(scope)
        if isinstance(each, (ast.Name, ast.Attribute)) and _first(loops[-1]) <= each.lineno <= last
        and ast.unparse(each) == name
    ]  # fmt: skip
    stores = [each.lineno for each in named if isinstance(each.ctx, ast.Store)]
    loads = [each.lineno for each in named if isinstance(each.ctx, ast.Load)]
    return bool(stores and loads) and min(loads) <= min(stores)


def parting(made: Sequence[SourceLine], used: Sequence[SourceLine]) -> int | None:
    """At which of their lines, outermost first, two nodes of one function part: 0 where that is the first one."""
    for level, (mine, theirs) in enumerate(zip(made, used)):
        if (mine.file, mine.function) != (theirs.file, theirs.function):
            return None
        if mine.line != theirs.line:
            return level
    return None


def line_in_scope_of(line: SourceLine, call: Sequence[Place]) -> SourceLine | None:
    """The line that a backward call was at in the function that ``line`` is in."""
    scope = scope_at(line.file, line.line)
    places = (_line(each) for each in call)
    return next((each for each in places if scope_at(each.file, each.line) is scope), None)


def _stepping(scopes: Sequence[ast.AST | None], line: int) -> _Loop | None:
    """The innermost loop around a line of the first of these functions in which an optimizer steps: in itself, or in
    one of the functions after, which are called in it."""
    if scopes[0] is None:
        return None
    within = any(_steps(each) for each in scopes[1:] if each is not None)
    loops = [each for each in _loops(scopes[0]) if _first(each) <= line <= (each.end_lineno or 0)]
    return next((each for each in reversed(loops) if within or _steps(each)), None)


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


def _loops(scope: ast.AST) -> Iterator[_Loop]:
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
