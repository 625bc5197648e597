"""Frames that start a process or a thread stand in one row of a stack, but for the one that is selected."""

from __future__ import annotations

import multiprocessing.process
import threading

from adbg.tui.text.starting_frames import folded, starts

LIBRARY = "/usr/lib/python3.12"
STACK = [
    ("/me/train.py", "train"), (f"{LIBRARY}/multiprocessing/process.py", "run"),
    (f"{LIBRARY}/multiprocessing/process.py", "_bootstrap"),
    (f"{LIBRARY}/multiprocessing/popen_fork.py", "_launch"), (f"{LIBRARY}/multiprocessing/context.py", "_Popen"),
    ("/me/train.py", "<module>"),
]  # fmt: skip
WAITS = [
    (f"{LIBRARY}/multiprocessing/connection.py", "_recv_bytes"),
    (f"{LIBRARY}/multiprocessing/connection.py", "recv_bytes"), (f"{LIBRARY}/multiprocessing/queues.py", "get"),
]  # fmt: skip


def test_whose_frames_they_are() -> None:
    assert starts(multiprocessing.process.__file__, "_bootstrap") and starts(threading.__file__, "_bootstrap_inner")
    assert not starts("/me/multiprocessing/process.py", "run") and not starts(f"{LIBRARY}/queue.py", "get")


def test_a_row_of_them_is_one() -> None:
    assert list(folded(STACK)) == [(0, 1), (1, 4), (5, 1)]
    assert list(folded(STACK, 3)) == [(number, 1) for number in range(6)], "one of them is selected"
    assert list(folded(STACK, 5)) == [(0, 1), (1, 4), (5, 1)]
    assert list(folded(STACK[:3])) == [(0, 1), (1, 1), (2, 1)], "two are shown as they are"
    assert list(folded([*WAITS, *STACK])) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 4), (8, 1)], "what waits is shown"
    assert list(folded([])) == []
