"""Which locks a thread waits for and has, of real threads that stand. Witness: the locks themselves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.program import wait_until

from adbg.engine.diagnosis.detectors.hangs.locks import locks_of

FIRST, SECOND, AGAIN = threading.Lock(), threading.Lock(), threading.RLock()


def inner() -> None:
    with FIRST:
        pass


def in_a_function() -> None:
    with SECOND:
        inner()


def by_a_call() -> None:
    with SECOND:
        FIRST.acquire()
        FIRST.release()


def tried_before() -> None:
    """The first call does not take it."""
    with SECOND:
        if not FIRST.acquire(blocking=False):
            FIRST.acquire()
        FIRST.release()


def as_a_signal() -> None:
    """What ``acquire`` took another thread may give back."""
    SECOND.acquire()
    inner()
    SECOND.release()


def two_at_once() -> None:
    with SECOND, FIRST:
        pass


def one_line() -> None:
    # fmt: off
    with FIRST: time.sleep(0)  # noqa: E701
    # fmt: on


def recursive() -> None:
    with AGAIN:
        inner()


@pytest.fixture
def standing() -> Iterator[Callable[[Callable[[], None]], tuple[int, list[int]]]]:
    """Runs a function in a thread while FIRST is taken, and says what it waits for and has."""
    threads: list[threading.Thread] = []

    def ask(function: Callable[[], None]) -> tuple[int, list[int]]:
        thread = threading.Thread(target=function, daemon=True)
        threads.append(thread)
        thread.start()
        places: list[object] = []

        def rests() -> bool:
            frame = sys._current_frames().get(thread.ident or 0)
            places.append((id(frame), frame.f_lasti if frame is not None else 0))
            time.sleep(0.05)
            return (
                frame is not None
                and frame.f_code.co_filename == __file__
                and len({*places[-3:]}) == 1 < len(places) - 1
            )

        wait_until(rests, "a thread that stands")
        wants, has = locks_of(sys._current_frames()[thread.ident or 0])
        return wants, list(has)

    with FIRST:
        yield ask
    for each in threads:
        each.join(10)


@pytest.mark.parametrize(
    ("function", "wants", "has"),
    [
        (in_a_function, FIRST, [SECOND]), (by_a_call, FIRST, [SECOND]), (tried_before, FIRST, [SECOND]),
        (as_a_signal, FIRST, []), (two_at_once, None, []), (one_line, None, []), (recursive, FIRST, []),
    ],
)  # fmt: skip
def test_what_a_thread_waits_for_and_has(
    standing: Callable[[Callable[[], None]], tuple[int, list[int]]],
    function: Callable[[], None],
    wants: object,
    has: list[object],
) -> None:
    asked = standing(function)
    assert asked == (id(wants) if wants is not None else 0, [id(each) for each in has])
    assert FIRST.locked() and SECOND.locked() is (SECOND in has or function in (as_a_signal, two_at_once))
