"""Functions that no signal handler's exception leaves before they are done, and one that C++ calls and that raises
nothing: there, what a signal raises waits for the script.

Python looks for signals, and for exceptions from other threads, as a function begins: before the first ``try`` in it.
Paddle 3.3.1 does not expect that of ``traceback.format_stack`` and dies of it: SIGSEGV in GetPythonStack, at call stack
level 3, with and without adbg. CPython 3.10 does not look where ``try`` is the first statement; from 3.11 on a table in
the code says which instructions a ``try`` covers, and here it covers the beginning too. Whether that holds is tried
once; where it does not, the plain function is used.

Runs on the threads of the forward; made on any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, TypeVar

Frame = types.FrameType
Quick = Callable[["Frame | None", "int | None", Frame], "list[str] | None"]
Plain = Callable[["Frame | None", "int | None", Frame], "list[str]"]
F = TypeVar("F", bound=Callable[..., Any])
_Entry = tuple[int, int, int, int]  # first instruction, how many, handler, depth and whether it keeps its place


def shield(quick: Quick, plain: Plain) -> Callable[..., list[str]]:
    """A ``format_stack``: what ``quick`` answers, and what ``plain`` does where that is None. Only ``plain`` may raise:
    ``quick`` has it asked where Python called."""
    made = _function(quick, plain)
    if holds():
        made.__code__ = _covered(made.__code__)
    return made


@functools.cache
def holds() -> bool:
    """Whether nothing is raised out of such a function on this Python."""
    try:
        made = _function(lambda f, limit, caller: ["kept"], lambda f, limit, caller: [])
        made.__code__ = _covered(made.__code__)
    except (ValueError, AttributeError, IndexError):
        return False
    return all(_survives(made) for _ in range(3))


def _function(quick: Quick, plain: Plain) -> types.FunctionType:
    nothing: list[str] = []
    frame, hand_on = sys._getframe, _hand_on

    # No call, no loop and no "with" between the try statements: nothing is looked for there.
    def format_stack(f: Frame | None = None, limit: int | None = None) -> list[str]:
        try:
            fallen = None
            lines = quick(f, limit, frame(1))
        except BaseException as error:
            fallen = error
        if fallen is not None:
            try:
                lines = quick(f, limit, frame(1))
            except BaseException:
                lines = nothing
            try:
                waits = hand_on(fallen)
            except BaseException as error:  # another one meanwhile
                fallen = error
                try:
                    waits = hand_on(fallen)
                except BaseException:
                    waits = None
            fallen = None
            if waits is None:
                return nothing
        if lines is not None:
            return lines
        return plain(f, limit, frame(1))

    assert isinstance(format_stack, types.FunctionType)
    return format_stack


# ------------------------------------------------------------------ what it raised, to the script

_raise = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)  # the third is the weak reference that calls it
_waiting: dict[int, weakref.ref[Any]] = {}  # by thread; one at most is under way


class _Waits:
    """Held by the function alone: it goes when the function has returned."""

    __slots__ = ("__weakref__",)


def _hand_on(error: BaseException) -> _Waits:
    """``error`` is raised again in this thread once the answer is dropped, which the function's own frame holds: so it
    waits until Python has nothing more to run there, and comes with the next instruction of the script. (Where that is
    another call of the function, it is handed on again.) C alone runs as the answer goes: Python code would be
    interrupted there in turn."""
    waits = _Waits()
    error.__traceback__ = None
    _waiting[get_ident()] = weakref.ref(waits, functools.partial(_raise, get_ident(), _carrier(error)))
    return waits


def _carrier(error: BaseException) -> type[BaseException]:
    """Only a class can be raised in a thread. This one, called, gives the exception as it was: ``sys.exit(3)`` in a
    handler stays that."""
    kind = type(error)
    try:
        return type(kind.__name__, (kind,), {"__new__": lambda cls, *args: error, "__module__": kind.__module__})
    except TypeError:  # a class that wants no subclasses
        return kind


# ------------------------------------------------------------------ the beginning covered


def _covered(code: types.CodeType) -> types.CodeType:
    """``code`` with its first ``try`` reaching back to its first instruction."""
    if sys.version_info < (3, 11):
        return code
    first = next(_entries(code.co_exceptiontable))
    return code.replace(co_exceptiontable=_written((0, first[0], *first[2:])) + code.co_exceptiontable)


def _entries(table: bytes) -> Iterator[_Entry]:
    """As CPython's Objects/exception_handling_notes.txt has it: four numbers each, six bits a byte, 64: more follow,
    128: the first byte of an entry."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
            if len(numbers) == 4:
                yield numbers[0], numbers[1], numbers[2], numbers[3]
                numbers = []


def _written(entry: _Entry) -> bytes:
    found = bytearray()
    for number in entry:
        digits = [number & 63]
        while number := number >> 6:
            digits.append(number & 63 | 64)
        found += bytes(reversed(digits))
    found[0] |= 128
    return bytes(found)


class _Probe(BaseException):
    """Raised to see where it goes."""


def _survives(made: Callable[[], object]) -> bool:
    """Call ``made`` from C with an exception on its way to this thread: it answers, and the exception comes later."""
    call = operator.methodcaller("__call__")
    answers: list[object] = []
    came = False
    with contextlib.suppress(_Probe):
        try:
            answers.extend(map(call, (functools.partial(_raise, get_ident(), _Probe, None), made)))
            for _ in range(1000):  # it is there by the next instruction
                pass
        except _Probe:
            came = True
            raise
    return came and answers == [1, ["kept"]]


def covered(function: F) -> F:
    """``function``, whose first statement is a ``try``, with its beginning under it too, where that holds."""
    if holds():
        setattr(function, "__code__", _covered(function.__code__))  # noqa: B010  (typed as any callable)
    return function


@covered
def surely(work: Callable[..., object], *args: Any) -> None:
    """``work(*args)``, which can be done twice, to its end: what a signal handler or another thread raises meanwhile is
    raised after it. For what must not be left half done. 0.1 us."""
    # No call, no loop and no "with" between the try statements: nothing is looked for there. Three exceptions within
    # one clean-up of some microseconds are one too many.
    try:
        fallen = None
        work(*args)
    except BaseException as error:
        fallen = error
    if fallen is not None:
        try:
            work(*args)
        except BaseException as error:
            fallen = error
            try:
                work(*args)
            except BaseException as error:
                fallen = error
        try:
            raise fallen
        finally:
            fallen = None  # its frames are kept no longer than it is


@covered
def aborting(abort: Callable[[BaseException], None], hook: Callable[..., Any], *args: Any) -> Any:
    """``hook(*args)``, called by a framework that makes an exception of its own of what is raised: ``abort`` hears of
    it before."""
    try:
        return hook(*args)
    except BaseException as error:
        abort(error)
        raise
