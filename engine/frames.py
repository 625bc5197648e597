"""Giving a value to a local of a live Python frame (L1, stdlib only; on the thread that the frame belongs to)."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from adbg.engine.errors import CommandError

_WRITE_THROUGH = sys.version_info >= (3, 13)  # PEP 667: f_locals writes to the frame itself


def write_locals(frame: types.FrameType, values: Mapping[str, Any], deleted: Iterable[str] = ()) -> None:
    """Set and delete locals of ``frame``. A name that the function does not have is kept beside them: expressions see
    it, the function's own code cannot.

    Raises:
        CommandError: this Python cannot do it.
    """
    deleted = tuple(deleted)
    if frame.f_locals is frame.f_globals:
        frame.f_globals.update(values)
        for name in deleted:
            frame.f_globals.pop(name, None)
        return
    local_names: Any = frame.f_locals  # taken once: up to 3.12 asking again would read the old values back
    for name, value in values.items():
        local_names[name] = value
    for name in deleted:
        try:
            del local_names[name]
        except (ValueError, KeyError):
            raise CommandError(
                f"cannot delete {name!r}: it is a local of the running function", "set it to None"
            ) from None
    if not _WRITE_THROUGH:
        _locals_to_fast(frame, clear=bool(deleted))


def _locals_to_fast(frame: types.FrameType, clear: bool) -> None:
    try:
        import ctypes

        to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
    except (ImportError, AttributeError):
        raise CommandError("this Python has no way to change a local of a running function (no ctypes)") from None
    to_fast(ctypes.py_object(frame), ctypes.c_int(clear))
