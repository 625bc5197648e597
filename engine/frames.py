"""Looking at the locals of a running function without keeping them alive.

Up to Python 3.12 ``frame.f_locals`` fills a dict that stays with the frame: what was a local at that moment lives until
the function returns or somebody asks again, also where the function has deleted or replaced it (``loss``, the caught
exception with all its frames). What adbg has read there it lets go of. On the thread that the frame belongs to.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
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


def locals_elsewhere(frame: types.FrameType, innermost: types.FrameType) -> dict[str, Any]:
    """``locals_of`` for a function that another thread runs now; ``innermost``: where that thread is.

    That thread may go on between any two instructions here. What was read is let go of in one call that nothing comes
    between, and only while nobody else holds it. At the end of a tracer or a profiler Python writes the values of the
    frame that it was given back into the function: they stay until that returns.
    """
    code = frame.f_code
    if not _STAYS or not code.co_flags & _OPTIMIZED:
        return dict(frame.f_locals)
    if (get := _get_var()) is not None:  # 3.12: each for itself, nothing is filled
        return {name: value for name in _names(code) if (value := get(frame, name)) is not _NOTHING}
    found: dict[str, Any] = {}
    given = False  # to the function that the one at hand has called: the one at hand
    here: types.FrameType | None = innermost
    while here is not None:
        found, caller = dict(here.f_locals), here.f_back
        if not given and here.f_code.co_flags & _OPTIMIZED:
            _drop(here.f_locals, _names(here.f_code))
        if here is frame:
            return found
        given = any(value is caller for value in found.values())
        here = caller
    return {}  # it has returned


def _names(code: types.CodeType) -> tuple[str, ...]:
    return (*code.co_varnames, *code.co_cellvars, *code.co_freevars)


def _drop(values: dict[str, Any], names: tuple[str, ...]) -> None:
    """Remove ``names`` while only ``_HELD`` references to ``values`` are there. All in C: no other thread runs between
    the count and the removal."""
    alone = map(_HELD.__eq__, map(sys.getrefcount, itertools.repeat(values)))
    list(map(values.pop, itertools.compress(names, alone), itertools.repeat(None)))


_NOTHING = object()


def _get_var() -> Callable[[types.FrameType, str], Any] | None:
    """``PyFrame_GetVarString`` of Python 3.12; None for other versions."""
    if sys.version_info[:2] != (3, 12):
        return None
    try:
        import ctypes

        read = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_char_p)(
            ("PyFrame_GetVarString", ctypes.pythonapi)
        )
    except (ImportError, AttributeError):
        return None

    def get(frame: types.FrameType, name: str) -> Any:
        try:
            return read(frame, name.encode())
        except (NameError, UnicodeEncodeError):  # it has no value now
            return _NOTHING

    return get


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


def _held() -> int:
    """References to the locals of a frame that only it holds, as ``_drop`` counts them."""
    frame = sys._getframe(1)

    def count(values: dict[str, Any]) -> int:
        pop, each = values.pop, itertools.repeat(values)
        del pop
        return next(map(sys.getrefcount, each)) + 1  # by ``values.pop``

    return count(frame.f_locals)


def _held_by_frame() -> int:
    return _held()


_REFERENCES = _unheld()
_HELD = _held_by_frame() if _STAYS else 0
