"""Which lock a thread waits for, and which ones it has: by the ``with`` blocks and the calls of ``acquire`` that its
functions stand in, in the source, and by their variables. No code of the program runs."""

from __future__ import annotations

import ast
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any

from adbg.engine.diagnosis.detectors.hangs.polling import value_in
from adbg.engine.diagnosis.source import inside, scope_at
from adbg.engine.diagnosis.values import attribute, is_users
from adbg.engine.frames import locals_elsewhere
from adbg.engine.python.user_code import source_line
from adbg.engine.types import SourceLine

_KINDS = (type(threading.Lock()), type(threading.RLock()))
_DEEP = 60  # frames of a thread
_With = (ast.With, ast.AsyncWith)


def locks_of(innermost: types.FrameType) -> tuple[int, dict[int, SourceLine]]:
    """(id of the lock that the thread waits for, 0 for none that is known; by id, since which line it has others)."""
    wanted = 0
    held: dict[int, SourceLine] = {}
    frame: types.FrameType | None = innermost
    first = True
    for _ in range(_DEEP):
        if frame is None:
            break
        line = source_line(frame) if is_users(frame) else None
        scope = scope_at(line.file, line.line) if line is not None else None
        if line is not None and scope is not None:
            values = {**frame.f_globals, **locals_elsewhere(frame, innermost)}
            if first:
                wanted = next((_lock(each, values) for each in _asked(scope, line.line)), 0)
                first = False
            for taken, since in _taken(scope, line.line):
                if lock := _lock(taken, values):
                    held.setdefault(lock, SourceLine(line.file, since, line.function))
            del values
        frame = frame.f_back
    return wanted, held


def _asked(scope: ast.AST, line: int) -> Iterator[ast.expr]:
    """What the line itself waits for."""
    for node in inside(scope):
        if isinstance(node, _With) and node.lineno <= line < node.body[0].lineno:
            yield from (each.context_expr for each in node.items)
        elif isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            yield from _acquired(node)


def _taken(scope: ast.AST, line: int) -> Iterator[tuple[ast.expr, int]]:
    """What was taken above the line and is not given back before it."""
    given: dict[str, int] = {}
    calls: list[tuple[ast.expr, int]] = []
    for node in inside(scope):
        if isinstance(node, _With) and node.body[0].lineno <= line <= (node.end_lineno or 0):
            yield from ((each.context_expr, node.lineno) for each in node.items)
        elif isinstance(node, ast.Call) and node.lineno < line:
            calls += [(each, node.lineno) for each in _acquired(node)]
            for each in _acquired(node, "release"):
                given[ast.unparse(each)] = max(given.get(ast.unparse(each), 0), node.lineno)
    yield from ((taken, at) for taken, at in calls if given.get(ast.unparse(taken), 0) < at)


def _acquired(call: ast.Call, how: str = "acquire") -> Iterator[ast.expr]:
    if isinstance(call.func, ast.Attribute) and call.func.attr == how:
        yield call.func.value


def _lock(expression: ast.expr, values: Mapping[str, Any]) -> int:
    """The id of a lock, or of the one that a condition has; 0 for anything else."""
    found = value_in(expression, values)
    if isinstance(found, threading.Condition):
        found = attribute(found, "_lock")
    return id(found) if type(found) in _KINDS else 0
