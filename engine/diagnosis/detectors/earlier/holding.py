"""Which of the variables that a line gives a value has the graph in question, by what they hold now: of an unpacking
one target may be a number, or a tensor without a graph."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall
from adbg.engine.diagnosis.detectors.earlier.carried import carried
from adbg.engine.diagnosis.source import every_assigned_on
from adbg.engine.diagnosis.values import is_users
from adbg.engine.diagnosis.variables import UNDEFINED, value_of
from adbg.engine.frames import forget_stack
from adbg.engine.outside import own
from adbg.engine.places import parsed
from adbg.engine.python.user_code import source_line
from adbg.engine.types import SourceLine

_LARGEST = 5_000  # nodes of a graph that is searched
_MOST = 64  # items of a container that are looked at
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def holding(backend: Backend, call: BackwardCall, key: int, line: SourceLine, names: Sequence[str]) -> list[str]:
    """Those of ``names``, which ``line`` gives a value, that hold the tensor which node ``key`` made. Where none does
    any more, for the line has run again since: those that a loop carries on, or whose graph has that node, or that may
    have a graph at all. ``names`` where the function does not run, or nothing speaks for one of them."""
    frames = [frame for frame in running_frames() if is_of(frame, line)]
    forget_stack()
    if not frames or not names:
        return list(names)
    address, every = call.address(key), list(dict.fromkeys([*names, *every_assigned_on(line.file, line.line)]))
    values = {name: value_in(name, frames[0]) for name in every}
    for depth in (0, 2):  # a tensor before a container that has it
        made = [n for n in every if address in (made_by(backend, each) for each in _tensors(backend, values[n], depth))]
        if made:
            return made
    may = [name for name in names if _may_have_graph(backend, values[name])] or list(names)
    return (
        [name for name in may if carried(line, [name])]
        or [
            name for name in may if any(_reaches(backend, each, address) for each in _tensors(backend, values[name], 2))
        ]
        or may
    )


def running_frames() -> Iterator[types.FrameType]:
    """The user's functions that run on this thread, innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            yield frame
        frame = frame.f_back


def is_of(frame: types.FrameType, line: SourceLine) -> bool:
    at = source_line(frame)
    return at is not None and (at.file, at.function) == (line.file, line.function)


def value_in(name: str, frame: types.FrameType) -> Any:
    try:
        return value_of(parsed(name, mode="eval").body, frame)
    except own(SyntaxError):
        return UNDEFINED


def made_by(backend: Backend, value: Any) -> int | None:
    """The address of the node that made a tensor."""
    graph = backend.graph_of([value]) if backend.has_graph(value) else None
    if graph is None:
        return None
    try:
        return graph.address(graph.roots()[0])
    finally:
        release(graph)


def holds(backend: Backend, value: Any, address: int) -> bool:
    """Whether it is a tensor that the node at an address made, or has one in it."""
    return address in (made_by(backend, each) for each in _tensors(backend, value, 2))


def _reaches(backend: Backend, value: Any, address: int) -> bool:
    graph = backend.graph_of([value]) if backend.has_graph(value) else None
    if graph is None:
        return False
    try:
        return graph.count() <= _LARGEST and any(graph.address(key) == address for key in graph.order())
    finally:
        release(graph)


def release(graph: Any) -> None:
    """What a graph holds of the framework's, as soon as nobody asks it any more."""
    release = getattr(graph, "release", None)
    if release is not None:
        release()


def _tensors(backend: Backend, value: Any, depth: int) -> Iterator[Any]:
    """The value, or those that a container has."""
    named = isinstance(value, tuple) and type(value).__iter__ is tuple.__iter__
    if named or type(value) in (list, dict):
        if depth:
            for each in list(value.values() if isinstance(value, dict) else value)[:_MOST]:
                yield from _tensors(backend, each, depth - 1)
    elif backend.is_tensor(value):
        yield value


def _may_have_graph(backend: Backend, value: Any) -> bool:
    """Of what is neither a tensor nor plain nothing is known."""
    if isinstance(value, _PLAIN):
        return False
    return not backend.is_tensor(value) or backend.has_graph(value)
