"""Looking at the locals of a running function without keeping them alive.

Up to Python 3.12 ``frame.f_locals`` fills a dict that stays with the frame: what was a local at that moment lives until
the function returns or somebody asks again, also where the function has deleted or replaced it (``loss``, the caught
exception with all its frames). What adbg has read there it lets go of. On the thread that the frame belongs to.
"""

from __future__ import annotations

import sys
import types
from typing import Any

_STAYS = sys.version_info < (3, 13)  # PEP 667: from there on nothing is filled
_OPTIMIZED = 1  # CO_OPTIMIZED: a function; the dict of a module or a class body holds its variables themselves


def local(frame: types.FrameType, name: str) -> Any:
    """The local ``name`` of ``frame``, None where it has none of that name now."""
    value = frame.f_locals.get(name)
    forget_locals(frame)
    return value


def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """The locals of ``frame``, in a dict of the caller's."""
    values = dict(frame.f_locals)
    forget_locals(frame)
    return values


def forget_locals(frame: types.FrameType) -> None:
    """Let go of what was read of ``frame``. Names that an expression added beside the function's own stay. Where the
    program holds that dict itself (``locals()``), or Python writes it back after a tracer or a profiler, it stays."""
    code = frame.f_code
    if not _STAYS or not code.co_flags & _OPTIMIZED or sys.gettrace() is not None or sys.getprofile() is not None:
        return
    values = frame.f_locals
    if sys.getrefcount(values) == _REFERENCES:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            values.pop(name, None)


def forget_stack() -> None:
    """The same for all functions that run on this thread."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        forget_locals(frame)
        frame = frame.f_back


def _references() -> int:
    """Of such a dict that nobody but its frame holds, counted where ``forget_locals`` does."""
    values = sys._getframe(1).f_locals
    return sys.getrefcount(values)


def _unheld() -> int:
    return _references()


_REFERENCES = _unheld()
