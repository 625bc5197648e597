"""Which lock a thread waits for, and which ones it has: by the ``with`` blocks that its functions stand in, in the
source, and by their variables. A Lock alone, which a thread cannot take twice. No code of the program runs."""

from __future__ import annotations

import ast
import threading
import types
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

from adbg.engine.diagnosis.detectors.hangs.polling import value_in
from adbg.engine.diagnosis.source import inside, scope_at
from adbg.engine.diagnosis.values import is_users
from adbg.engine.frames import locals_elsewhere
from adbg.engine.python.user_code import source_line
from adbg.engine.types import SourceLine

_KIND = type(threading.Lock())
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
            asked = [*_asked(scope, line.line)] if first else []
            taken = [*_taken(scope, line.line)]
            first = False
            if asked or taken:
                values = ChainMap(locals_elsewhere(frame, innermost), frame.f_globals)
                wanted = next((_lock(each, values) for each in asked), wanted)
                for each, since in taken:
                    if lock := _lock(each, values):
                        held.setdefault(lock, SourceLine(line.file, since, line.function))
                del values
        frame = frame.f_back
    return wanted, held


def _asked(scope: ast.AST, line: int) -> Iterator[ast.expr]:
    """What the line itself waits for: of ``with a, b:`` it is not known which."""
    for node in inside(scope):
        if isinstance(node, _With) and len(node.items) == 1 and node.lineno <= line < node.body[0].lineno:
            yield node.items[0].context_expr
        elif isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            called = node.func
            yield from [called.value] if isinstance(called, ast.Attribute) and _waits(node) else []


def _waits(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "acquire" and not (call.args or call.keywords)


def _taken(scope: ast.AST, line: int) -> Iterator[tuple[ast.expr, int]]:
    """What a ``with`` around the line has. Not what ``acquire`` took: another thread may release it, as a signal."""
    for node in inside(scope):
        if isinstance(node, _With) and node.lineno < node.body[0].lineno <= line <= (node.end_lineno or 0):
            yield from ((each.context_expr, node.lineno) for each in node.items)


def _lock(expression: ast.expr, values: Mapping[str, Any]) -> int:
    """Its id; 0 for anything else."""
    found = value_in(expression, values)
    return id(found) if type(found) is _KIND else 0
