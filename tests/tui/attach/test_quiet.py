"""What is told while adbg cannot get into a process yet."""

from __future__ import annotations

import os
import threading

import pytest
from support.patience import patience

from adbg.engine.attach import stacks_pyspy
from adbg.tui.attach import quiet


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "QUIET", 0.1)
    monkeypatch.setattr(stacks_pyspy, "find", lambda: "")


def test_a_process_in_the_queue_is_told_once() -> None:
    said: list[str] = []
    told = threading.Event()
    quiet.tell_when_queued(os.getpid(), lambda: True, threading.Event(), lambda text: (said.append(text), told.set()))
    assert told.wait(patience(20))
    assert said[0].startswith(f"process {os.getpid()}: ") and "read from outside" in said[0]


@pytest.mark.parametrize("given_up", [True, False])
def test_one_that_was_entered_or_given_up_is_not(given_up: bool) -> None:
    asked = threading.Event()
    cancelled = threading.Event()
    if given_up:
        cancelled.set()
    said: list[str] = []

    def waits() -> bool:
        asked.set()
        return False

    quiet.tell_when_queued(os.getpid(), waits, cancelled, said.append)
    assert asked.wait(0.5 if given_up else patience(20)) is not given_up
    assert not said
