"""Whose an exception is: adbg's own, or raised by the program's signal handler or another thread in adbg's code."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import os
import signal
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from adbg.engine.outside import by_handler, from_outside, own, suppress

# A function of adbg's, as far as its module's name tells.
ADBG = types.FunctionType(compile("work()", "adbg_like.py", "eval"), {"__name__": "adbg.engine.like"}).__code__


def as_adbg(work: Callable[[], Any]) -> None:
    exec(ADBG, {"__name__": "adbg.engine.like", "work": work})


class Timeout(Exception):
    pass


class Handler:
    def __call__(self, number: int, frame: object) -> None:
        raise ValueError("by an object")

    def method(self, number: int, frame: object) -> None:
        raise ValueError("by a method")


def plain_handler(number: int, frame: object) -> None:
    raise RuntimeError("by a function")


def forgetful(number: int, frame: object) -> None:
    del frame
    raise OSError("its argument is gone")


@pytest.mark.parametrize(
    "handler",
    [
        plain_handler,
        forgetful,
        Handler(),
        Handler().method,
        lambda *arguments: plain_handler(*arguments),
        functools.partial(plain_handler),
    ],
    ids=["function", "forgetful", "object", "method", "lambda", "partial"],
)
def test_a_signal_handler_is_known(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Exception) as found:
            as_adbg(functools.partial(signal.raise_signal, signal.SIGUSR1))
        assert from_outside(found.value)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [Timeout, TimeoutError, RuntimeError, KeyboardInterrupt])
def test_another_thread_is_known(kind: type[BaseException]) -> None:
    def wait() -> None:
        main, raises = threading.main_thread().ident, ctypes.pythonapi.PyThreadState_SetAsyncExc
        threading.Timer(0.02, lambda: raises(ctypes.c_ulong(main or 0), ctypes.py_object(kind))).start()
        exec(compile("while True: pass", "adbg_like.py", "exec"), {"__name__": "adbg.engine.like"})

    with pytest.raises(kind) as found:
        wait()
    assert from_outside(found.value)


@pytest.mark.parametrize(
    "work",
    [lambda: [].index(3), lambda: {}["a"], lambda: os.stat("/nowhere/at/all"), lambda: next(iter(()))],
    ids=["value", "key", "os", "bare"],
)
def test_adbgs_own_is_caught(work: Callable[[], Any]) -> None:
    with suppress(Exception):
        as_adbg(work)
    try:
        as_adbg(work)
    except own(Exception) as error:
        assert not from_outside(error)


def test_the_program_s_passes_both() -> None:
    before = signal.signal(signal.SIGUSR1, plain_handler)
    raise_it = functools.partial(as_adbg, functools.partial(signal.raise_signal, signal.SIGUSR1))
    try:
        with pytest.raises(RuntimeError), suppress(Exception):
            raise_it()
        with pytest.raises(RuntimeError):
            try:
                raise_it()
            except own(Exception):
                pass
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_an_expression_raises_is_its_own() -> None:
    """A library's exceptions are of kinds that nobody here knows; a time-out is one that the user asked for."""
    library = {"__name__": "fancylib", "Fancy": type("Fancy", (Exception,), {"__module__": "fancylib"})}
    exec(compile("def check():\n    raise Fancy('no')", "/x/site-packages/fancylib/__init__.py", "exec"), library)
    for text in ("check()", "Future().result(0.01)"):
        names = {"__name__": "__main__", "check": library["check"], "Future": concurrent.futures.Future}
        work = functools.partial(eval, compile(text, "<adbg>", "eval"), names)
        with suppress(Exception):
            as_adbg(work)


def test_what_a_library_raises_below_an_engine_is_an_error() -> None:
    library = {"__name__": "fancylib"}
    exec(compile("def backward():\n    raise RuntimeError", "/x/site-packages/fancylib/__init__.py", "exec"), library)
    with pytest.raises(RuntimeError) as found:
        as_adbg(library["backward"])
    assert not by_handler(found.value) and not from_outside(found.value)
