"""Frames that start a process or a thread stand in one row of a stack, but for the one that is selected."""

from __future__ import annotations

import multiprocessing.process
import threading

from adbg.tui.text.starting_frames import folded, starts

LIBRARY = "/usr/lib/python3.12"
STACK = [
    "/me/train.py", f"{LIBRARY}/multiprocessing/process.py", f"{LIBRARY}/multiprocessing/process.py",
    f"{LIBRARY}/multiprocessing/popen_fork.py", f"{LIBRARY}/multiprocessing/context.py", "/me/train.py",
]  # fmt: skip


def test_whose_frames_they_are() -> None:
    assert starts(multiprocessing.process.__file__) and starts(threading.__file__)
    assert not starts("/me/multiprocessing/process.py") and not starts(f"{LIBRARY}/queue.py")


def test_a_row_of_them_is_one() -> None:
    assert list(folded(STACK)) == [(0, 1), (1, 4), (5, 1)]
    assert list(folded(STACK, 3)) == [(number, 1) for number in range(6)], "one of them is selected"
    assert list(folded(STACK, 5)) == [(0, 1), (1, 4), (5, 1)]
    assert list(folded(STACK[:3])) == [(0, 1), (1, 1), (2, 1)], "two are shown as they are"
    assert list(folded([])) == []
