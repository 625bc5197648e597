"""A program that ends while a thread of adbg's is inside its framework ends as it would without adbg; which threads
are adbg's."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.dialled import Dialled

from adbg.engine import own_threads

# Tensors and nodes are freed all the time: their destructors let go of the GIL and take it again.
FREEING = {
    "torch": """
import torch
def freed():
    w = torch.ones(3, requires_grad=True)
    for _ in range(20):
        w = w.sin()
""",
    "paddle": """
import paddle
def freed():
    w = paddle.ones([3])
    w.stop_gradient = False
    for _ in range(20):
        w = w.sin()
""",
}
BEHIND = """
import atexit, sys, threading, time
from adbg.engine import own_threads

ended = threading.Event()
def work():
    while not ended.is_set():
        freed()

own_threads.begin(work, "adbg-test", end=ended.set)
atexit.register(own_threads.end_all, 30.0)
time.sleep(0.2)
print("done", own_threads.end_all.__name__)
"""
LEAVING = """
import time
from adbg.engine.session.session import Session

def slowly(self, leave=Session.detach):
    was = self.attached
    leave(self)
    end = time.monotonic() + 0.7
    while was and time.monotonic() < end:  # as long as a graph of a million nodes takes
        freed()
Session.detach = slowly
import adbg
adbg.breakpoint()
print("done")
"""
both = pytest.mark.parametrize("framework", [pytest.param("torch"), pytest.param("paddle", marks=pytest.mark.paddle)])


@both
def test_the_end_waits_for_a_thread(framework: str) -> None:
    """Without the wait: SIGABRT ("terminate called without an active exception"), 5 of 5 with torch 2.13."""
    script = FREEING[framework] + BEHIND
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "done end_all\n"), ran.stderr


@both
def test_a_front_end_that_leaves_as_the_program_ends(framework: str, tmp_path: Path) -> None:
    with Dialled(tmp_path, FREEING[framework] + LEAVING) as run:
        run.peer.begin()
        run.peer.stopped()
        run.peer.request("disconnect")
        status, out, err = run.end()
    assert (status, out) == (0, "done\n"), err


def test_a_thread_of_the_program_with_the_number_of_one_that_ended_is_the_programs() -> None:
    """The system gives numbers of threads again: backwards of that thread were not seen."""
    told: list[bool] = []
    ended = own_threads.begin(lambda: told.append(own_threads.is_own()), "adbg-ended")
    ended.join()
    assert told == [True]
    seen: dict[int, bool] = {}

    def look() -> None:
        seen[threading.get_ident()] = own_threads.is_own()

    for _ in range(200):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        if ended.ident in seen:
            break
    assert not any(seen.values())
    assert ended.ident in seen, "the number did not come again: nothing was tested"
