"""The promise "no harm" of an attach: a front end that is killed, wherever it is, leaves a program that goes on, has
nothing of adbg's in it, and ends with the result of a program to which nobody attached."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stress import catalog
from stress.attaching import attach_and_detach
from stress.census import Census, census, left_behind
from stress.running import Running, witness
from support.frameworks import on_frameworks, only
from support.program import wait_until

TESTS = Path(__file__).resolve().parents[1]


@contextmanager
def front_end(pid: int, until: str, *spec: str) -> Iterator[subprocess.Popen[str]]:
    """One that stays where it is once it has said ``until``."""
    command = [sys.executable, "-m", "stress.front", str(pid), until, *spec]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, cwd=TESTS, **pipes)
    assert process.stdout is not None and process.stdin is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if said[-1] == until:
                break
        assert said and said[-1] == until, said
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def nothing_left(pid: int, before: Census) -> None:
    left: list[str] = []

    def clean() -> bool:
        left[:] = left_behind(before, census(pid))
        return not left

    try:
        wait_until(clean, "the process as it was", 30)
    except AssertionError:
        raise AssertionError(f"left behind: {left}") from None


def check_result(target: Running) -> None:
    steps, digest = target.end()
    assert witness(target.kind, target.python, steps) == digest


@on_frameworks()
@pytest.mark.parametrize(("until", "spec"), [("stop", ["Relu*"]), ("armed", ["NoSuchNode"])], ids=["stop", "armed"])
def test_killed(framework: str, until: str, spec: list[str]) -> None:
    """At a stop, and while the program runs with something armed; and the next front end is welcome."""
    kind = catalog.SLOW[framework]
    with Running(kind, catalog.python_of(framework)) as target:
        before = census(target.pid)
        with front_end(target.pid, until, *spec) as front:
            front.send_signal(signal.SIGKILL)
            front.wait()
            nothing_left(target.pid, before)
        again = attach_and_detach(target.pid)
        assert not again.error and not again.left, again
        check_result(target)


@only("torch", "the way in is the same for every framework")
def test_killed_while_queued() -> None:
    """The main thread is in an operator of half a second without the GIL: the front end waits, and dies of it."""
    kind = catalog.kind("matmul with the GIL released")
    with Running(kind, catalog.python_of("torch")) as target:
        before = census(target.pid)
        for _ in range(3):
            with front_end(target.pid, "entering") as front:
                front.send_signal(signal.SIGKILL)
        nothing_left(target.pid, before)
        again = attach_and_detach(target.pid)
        assert not again.error and not again.left, again
        check_result(target)


@only("torch", "no framework is needed, and one is enough")
@pytest.mark.parametrize("name", ["time.sleep", "socket recv with a time-out", "lock.acquire with a time-out"])
def test_killed_beside_a_blocked_call(name: str) -> None:
    """The call that the main thread is in goes on: it returns neither early nor with an error."""
    with Running(catalog.kind(name), sys.executable) as target:
        before = census(target.pid)
        for until in ("entering", "hello"):
            with front_end(target.pid, until) as front:
                front.send_signal(signal.SIGKILL)
            nothing_left(target.pid, before)
            target.poke()
        check_result(target)


@only("torch", "no framework is needed, and one is enough")
def test_ends_while_attached() -> None:
    """The program ends by itself: its status and its result are its own."""
    with Running(catalog.kind("tight Python loop"), sys.executable) as target, front_end(target.pid, "hello"):
        check_result(target)
