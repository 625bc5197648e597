"""What a function was handed within a container: the line that takes it is the one to change, for the whole container
cannot be detached where it was made."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall
from adbg.engine.diagnosis.detectors.earlier.holding import is_of, made_by, running_frames, value_in
from adbg.engine.diagnosis.values import tensor_locals
from adbg.engine.frames import forget_stack
from adbg.engine.types import SourceLine

_MOST = 100  # items of a dict that are looked at


def taken_from(
    backend: Backend, call: BackwardCall, older: int, used: Sequence[SourceLine], made: SourceLine | None, name: str
) -> tuple[SourceLine, str] | None:
    """Where node ``older`` made a tensor that a running function was handed, and ``made`` gave a list, a tuple or a
    dict ``name`` that has it: the line of ``used`` in that function, and what the tensor is called there."""
    if made is None or not name:
        return None
    frames = list(running_frames())
    forget_stack()
    for frame in frames:
        if is_of(frame, made) and not isinstance(value_in(name, frame), (list, tuple, dict)):
            return None
    for frame in frames:
        line = next((each for each in used if is_of(frame, each)), None)
        if line is None or is_of(frame, made):
            continue
        given = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        for inner, value in tensor_locals(backend, frame):
            if inner in given and made_by(backend, value) == call.address(older):
                return line, inner
        for inner in given:
            item = _item_of(backend, value_in(inner, frame), call.address(older))
            if item and inner in (text := linecache.getline(line.file, line.line)) and item in text.replace('"', "'"):
                return line, f"{inner}[{item}]"
    return None


def _item_of(backend: Backend, container: Any, address: int) -> str:
    """The key of a dict, as text, under which it has what that node made; "" for none."""
    for key, value in list(container.items())[:_MOST] if type(container) is dict else ():
        if type(key) in (str, int) and backend.is_tensor(value) and made_by(backend, value) == address:
            return repr(key)
    return ""
