"""What a function was handed within a container: the line that takes it is the one to change, for the whole container
cannot be detached where it was made."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall
from adbg.engine.diagnosis.values import is_users, tensor_locals
from adbg.engine.diagnosis.variables import UNDEFINED, value_of
from adbg.engine.frames import forget_stack
from adbg.engine.outside import own
from adbg.engine.python.user_code import source_line
from adbg.engine.types import SourceLine


def taken_from(
    backend: Backend, call: BackwardCall, older: int, used: Sequence[SourceLine], made: SourceLine | None, name: str
) -> tuple[SourceLine, str] | None:
    """Where node ``older`` made a tensor that a running function was handed, and ``made`` gave a list, a tuple or a
    dict ``name`` that has it: the line of ``used`` in that function, and what the tensor is called there."""
    if made is None or not name:
        return None
    frames = list(_frames())
    forget_stack()
    for frame in frames:
        if _is_of(frame, made) and not isinstance(_value(name, frame), (list, tuple, dict)):
            return None
    for frame in frames:
        line = next((each for each in used if _is_of(frame, each)), None)
        if line is None or _is_of(frame, made):
            continue
        given = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        for inner, value in tensor_locals(backend, frame):
            if inner in given and _made_by(backend, value) == call.address(older):
                return line, inner
    return None


def _frames() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            yield frame
        frame = frame.f_back


def _is_of(frame: types.FrameType, line: SourceLine) -> bool:
    at = source_line(frame)
    return at is not None and (at.file, at.function) == (line.file, line.function)


def _value(name: str, frame: types.FrameType) -> Any:
    try:
        return value_of(ast.parse(name, mode="eval").body, frame)
    except own(SyntaxError):
        return UNDEFINED


def _made_by(backend: Backend, value: Any) -> int | None:
    """The address of the node that made a tensor."""
    graph = backend.graph_of([value]) if backend.has_graph(value) else None
    if graph is None:
        return None
    try:
        return graph.address(graph.roots()[0])
    finally:
        release = getattr(graph, "release", None)
        if release is not None:
            release()
