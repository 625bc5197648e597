"""A flag that is set and waited for on threads into which a signal handler of the program's raises."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from support.patience import patience

from adbg.engine.flag import Flag


class TimeUp(Exception):
    """What the program's handler raises."""


def interrupted(what: Callable[[], object], number: int) -> bool:
    """Behind the ``number``-th instruction of what is called; whether it has so many."""
    left = number

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "opcode" and left:
            left -= 1
            if not left:
                raise TimeUp
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        return local

    sys.settrace(trace)
    try:
        what()
    except TimeUp:
        return True
    finally:
        sys.settrace(None)
    return False


def done(what: Callable[[], object]) -> bool:
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    thread.join(patience(5))
    return not thread.is_alive()


def works(flag: Any) -> bool:
    """Others can set it, wait for it and clear it."""
    heard: list[bool] = []
    sets = done(flag.set)
    waits = done(lambda: heard.append(flag.wait(60)))
    clears = done(flag.clear) and done(lambda: heard.append(flag.wait(0)))
    return sets and waits and clears and heard == [True, False]


@pytest.mark.parametrize("call", ["set", "wait", "clear"])
def test_an_exception_anywhere_leaves_it_in_order(call: str) -> None:
    number = 0
    while True:
        number += 1
        flag = Flag()
        if call != "set":
            flag.set()
        came = interrupted(getattr(flag, call), number)
        assert works(flag), number
        if not came:
            break
    assert number > 5


def test_a_flag_of_the_standard_librarys_is_left_locked() -> None:
    """The test of this test."""
    broken = []
    for number in range(1, 100):
        flag = threading.Event()
        if not interrupted(flag.set, number):
            break
        if not done(flag.is_set) or flag._cond._lock.locked():  # type: ignore[attr-defined]
            broken.append(number)
    assert broken


def test_those_who_wait_are_woken_and_all_of_them() -> None:
    flag, heard = Flag(), list[bool]()
    threads = [threading.Thread(target=lambda: heard.append(flag.wait(patience(30))), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not flag.wait(0.01) and not flag.is_set()
    flag.set()
    for thread in threads:
        thread.join(patience(30))
    assert heard == [True] * 3 and flag.is_set()
    flag.clear()
    assert not flag.is_set() and not flag.wait(0)
