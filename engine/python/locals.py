"""Giving a value to a local of a live Python frame (on the thread that the frame belongs to)."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from adbg.engine.errors import CommandError

_WRITE_THROUGH = sys.version_info >= (3, 13)  # PEP 667: f_locals writes to the frame itself


def write_locals(frame: types.FrameType, values: Mapping[str, Any], deleted: Iterable[str] = ()) -> None:
    """Set locals of ``frame``, and delete such names as the function does not have. A new name is kept beside the
    function's own: expressions see it, its code cannot.

    Raises:
        CommandError: this Python cannot do it, or a local of the function's own is to be deleted (3.12 would set it
            to None, 3.13 refuses it, and no running code expects it).
    """
    deleted = tuple(deleted)
    if frame.f_locals is frame.f_globals:
        frame.f_globals.update(values)
        for name in deleted:
            frame.f_globals.pop(name, None)
        return
    local_names: Any = frame.f_locals  # taken once: up to 3.12 asking again would read the old values back
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for name, value in values.items():
        local_names[name] = value
    kept = own.intersection(deleted)
    for name in set(deleted) - own:
        try:
            del local_names[name]
        except (KeyError, TypeError, ValueError):  # the first 3.13 can delete nothing there
            kept.add(name)
    if not _WRITE_THROUGH:
        _locals_to_fast(frame)
    if kept:
        name = min(kept)
        raise CommandError(
            f"{name!r} is not deleted: the function that runs keeps its locals", f"use: set {name} = None"
        )


def _locals_to_fast(frame: types.FrameType) -> None:
    try:
        import ctypes

        to_fast = ctypes.pythonapi.PyFrame_LocalsToFast
    except (ImportError, AttributeError):
        raise CommandError("this Python has no way to change a local of a running function (no ctypes)") from None
    to_fast(ctypes.py_object(frame), ctypes.c_int(0))  # 0: names that are missing keep their value
