"""What adbg did not raise itself: an exception of the program's that came while adbg's code ran on its thread.

A signal handler of the program's (the time-out by SIGALRM), another thread (``PyThreadState_SetAsyncExc``) or a Ctrl-C
can raise between any two instructions, those of adbg's hooks too. Such an exception belongs to the program, so code
that runs on its threads catches with ``except own(OSError):`` and ``with suppress(OSError):`` in place of Python's.
"""

from __future__ import annotations

import dis
import os
import signal
import sys
import types
from collections.abc import Iterator
from typing import Any, TypeVar

from adbg.engine.frames import locals_of

#: Code of adbg's functions that go by a framework's name.
DISGUISED: set[types.CodeType] = set()

E = TypeVar("E", bound=BaseException)
_PYTHON = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_PACKAGES = f"{os.sep}site-packages{os.sep}"
#: Raised without an argument by Python itself and by the standard library. Another thread gives a class alone, so what
#: it raises has no argument either.
_BARE = (
    AssertionError, AttributeError, GeneratorExit, KeyError, MemoryError, NotImplementedError, StopAsyncIteration,
    StopIteration,
)  # fmt: skip


def own(*kinds: type[E]) -> tuple[type[E], ...]:
    """``except own(ValueError):`` catches as ``except ValueError:`` does, but nothing that came from outside. 0.15 us,
    and 1-10 us more where something was raised."""
    error = sys.exc_info()[1]
    return kinds if error is None or not isinstance(error, kinds) or not from_outside(error) else ()


class suppress:  # as contextlib's: a lower-case name, used in a ``with``
    """``contextlib.suppress`` of what adbg raised itself."""

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, self._kinds) and not from_outside(error)


def from_outside(error: BaseException) -> bool:
    """Whether the program raised ``error``, out of a signal handler or from another thread, and not the code that runs.

    Told by its traceback: a handler's frame was called with the frame that it interrupted. What another thread raises
    has no frame of its own and no ``raise`` where it begins, and is bare or of a kind that nobody there knows.
    """
    return by_handler(error) or (not _raised(error) and _is_foreign(error))


def by_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program's raised ``error``. To be asked of what comes out of an engine, where any
    library's code runs."""
    if isinstance(error, KeyboardInterrupt):  # the interpreter's own handler has no frame
        return True
    before: types.FrameType | None = None
    codes: frozenset[types.CodeType] | None = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if before is not None and not _is_own(frame):
            if _was_given(frame, before):
                return True
            if codes is None:
                codes = frozenset(_handlers())
            if frame.f_code in codes:
                return True
        before = frame
        trace = trace.tb_next
    return False


def _raised(error: BaseException) -> bool:
    """Whether the code says so where it begins: another thread's comes between two instructions."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_lasti < 0:
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


def _in_adbg(error: BaseException) -> bool:
    """Whether nothing but the standard library and what adbg itself calls of a framework ran below adbg's code."""
    trace = error.__traceback__
    while trace is not None and not _is_own(trace.tb_frame):
        trace = trace.tb_next
    if trace is None:
        return False
    while trace is not None:
        frame = trace.tb_frame
        file = frame.f_code.co_filename
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if not _is_own(frame) and top not in _KNOWN and not is_standard(file):
            return False
        trace = trace.tb_next
    return True


def is_standard(file: str) -> bool:
    """Whether a file is one of the standard library's."""
    return file.startswith(_PYTHON) and _PACKAGES not in file


def _is_own(frame: types.FrameType) -> bool:
    if frame.f_code in DISGUISED:
        return True
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == "adbg"


def _was_given(frame: types.FrameType, interrupted: types.FrameType) -> bool:
    """Whether ``interrupted`` is among the arguments of ``frame``: so a handler (a tracer, too) is called, and nothing
    else is."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)  # CO_VARARGS
    if not count:
        return False
    values = locals_of(frame)
    for name in code.co_varnames[:count]:
        value = values.get(name)
        if value is interrupted or (type(value) is tuple and any(item is interrupted for item in value)):
            return True
    return False


def _handlers() -> Iterator[types.CodeType]:
    """The code of the program's signal handlers: one may have changed its arguments."""
    for number in range(1, signal.NSIG):
        try:
            handler: Any = signal.getsignal(number)
        except ValueError:
            continue
        if callable(handler):
            yield from _codes(handler)


def _codes(handler: Any) -> Iterator[types.CodeType]:
    for _ in range(4):
        handler = getattr(handler, "func", handler)  # functools.partial
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code
            return
        handler = getattr(type(handler), "__call__", None)  # noqa: B004  (an object that can be called)


def _is_foreign(error: BaseException) -> bool:
    """Another thread gives a class, so that what it raises has no argument, unless the class gives itself one."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return not error.args and not isinstance(error, _BARE)
    top = kind.__module__.partition(".")[0]
    if top in _KNOWN or top in sys.stdlib_module_names:
        return False
    if any(base.__module__.partition(".")[0] in _KNOWN for base in kind.__mro__):
        return False
    return not error.args or _in_adbg(error)  # else a C extension's own


_KNOWN = frozenset(("adbg", "torch", "paddle", "numpy"))
