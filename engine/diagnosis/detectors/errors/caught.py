"""Exceptions that a program raises in backward in order to leave it: a class of its own, which it catches by name."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator

from adbg.engine.diagnosis.source import called_name, tree_of
from adbg.engine.diagnosis.values import is_users, value_of
from adbg.engine.own_files import is_library


def is_left_on_purpose(error: BaseException) -> bool:
    """Whether the program raised an exception of a class of its own, and a ``try`` (or ``suppress``) around this
    backward names that class. To be asked on the thread that called backward, before the exception leaves it."""
    own = [kind for kind in type(error).__mro__ if _is_users_own(kind)]
    frame: types.FrameType | None = sys._getframe(1) if own else None
    while frame is not None:
        if is_users(frame) and any(_names(frame, each, own) for each in _catching(frame)):
            return True
        frame = frame.f_back
    return False


def _is_users_own(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)  # none of what is built in
    return file is not None and not is_library(file)


def _catching(frame: types.FrameType) -> Iterator[ast.expr]:
    """The classes that are caught around the line that ``frame`` is at."""
    tree, line = tree_of(frame.f_code.co_filename), frame.f_lineno
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Try) and _holds(node.body, line):
            yield from (each.type for each in node.handlers if each.type is not None)
        elif isinstance(node, ast.With) and _holds(node.body, line):
            for item in node.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and called_name(call) == "suppress":
                    yield from call.args


def _holds(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _names(frame: types.FrameType, caught: ast.expr, own: list[type]) -> bool:
    """One of the program's own classes: ``except Exception`` says nothing of a purpose."""
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(any(value_of(frame, name) is kind for kind in own) for name in names)
