"""A lock that was taken as processes were forked: each has it taken, too, and nobody there who could release it.
Found by its variable, and where the program takes it. No code of the program runs."""

from __future__ import annotations

import ast
import sys
import threading
import types
from collections.abc import Container, Iterator
from typing import Any

from adbg.engine.diagnosis.source import inside, nodes_of, scope_at
from adbg.engine.diagnosis.values import is_users
from adbg.engine.frames import locals_elsewhere
from adbg.engine.types import SourceLine

_KIND = type(threading.Lock())
_DEEP, _MOST = 60, 400  # frames of the main thread, objects that are looked into
_LEVELS = 2  # of attributes: the data set of a loader, and what it has


def inherited_lock(held: Container[int]) -> tuple[str, SourceLine] | None:
    """(name, the line that takes it) of the only lock of the program's that is taken now, and that another function of
    its file takes as well. ``held``: ids of locks that threads of this process stand in."""
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    if main is None:
        return None
    found: dict[int, tuple[str, SourceLine]] = {}
    for name, lock, file in _locks_from(main):
        if id(lock) not in held and lock.locked():
            line = _taken_for_good(file, name)
            if line is not None:
                found[id(lock)] = name, line
    return next(iter(found.values())) if len(found) == 1 else None


def _locks_from(innermost: types.FrameType) -> Iterator[tuple[str, Any, str]]:
    """(last name, lock, file) of those that its variables hold, or their attributes."""
    seen: set[int] = set()
    frame: types.FrameType | None = innermost
    for _ in range(_DEEP):
        if frame is None:
            return
        if is_users(frame):
            variables = {**frame.f_globals, **locals_elsewhere(frame, innermost)}
            todo = [(name, value, 0) for name, value in variables.items()]
            while todo and len(seen) < _MOST:
                name, value, depth = todo.pop()
                if type(value) is _KIND:
                    yield name, value, frame.f_code.co_filename
                elif id(value) not in seen and depth < _LEVELS and not isinstance(value, (type, types.ModuleType)):
                    seen.add(id(value))
                    own = _dict_of(value)
                    parts = list(own.items()) if type(own) is dict else []
                    todo += [(key, part, depth + 1) for key, part in parts if type(key) is str]
            del variables, todo
        frame = frame.f_back


def _dict_of(value: Any) -> Any:
    """Without the program's code: a class may have a ``__dict__`` of its own, and a proxy a ``__getattribute__``."""
    for kind in type(value).__mro__:
        found = kind.__dict__.get("__dict__")
        if found is not None:
            return found.__get__(value) if isinstance(found, types.GetSetDescriptorType) else None
    return None


def _taken_for_good(file: str, name: str) -> SourceLine | None:
    """The line of ``NAME.acquire()`` in a function that does not release it, where another one takes it."""
    taken, used = [], 0
    for node in nodes_of(file):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "acquire" and _is(called.value, name):
            scope = scope_at(file, called.lineno)
            used += 1
            if scope is not None and not any(_releases(each, name) for each in inside(scope)):
                taken.append(SourceLine(file, called.lineno, getattr(scope, "name", "<module>")))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            used += any(_is(each.context_expr, name) for each in node.items)
    return taken[0] if len(taken) == 1 and used > 1 else None


def _is(node: ast.expr, name: str) -> bool:
    return ast.unparse(node).rpartition(".")[2] == name


def _releases(node: ast.AST, name: str) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == "release" and _is(called.value, name)
