"""What is told where nothing comes: no stop that was asked for, or no way into a process."""

from __future__ import annotations

import os
import threading

import pytest
from support.patience import patience
from support.scripted_agent import ScriptedAgent, ScriptedProgram
from support.watched_debugger import Watched

from adbg.engine.attach import stacks_pyspy
from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import State
from adbg.tui.debugger.job import quiet


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


def test_a_stop_that_does_not_come_is_told_of_a_program_that_adbg_started() -> None:
    def prepare(agent: ScriptedAgent) -> None:
        agent.on_begin = lambda: None  # it runs, and reaches no node
        agent.do_pause = lambda arguments: protocol.Empty()  # type: ignore[method-assign]
        agent.do_allThreads = lambda arguments: protocol.AllThreadsBody([])  # type: ignore[attr-defined]

    one = Watched(ScriptedProgram(prepare=prepare))
    try:
        one.debugger.start()
        one.debugger.begin()
        one.wait(events.ProcessJoined, seconds=patience(20))
        assert one.debugger.state is State.RUNNING
        one.debugger.pause()
        notice = one.wait(events.Notice, seconds=patience(20))
        assert "has reached no node" in notice.text and "`where all`" in notice.text
    finally:
        one.debugger.close()
