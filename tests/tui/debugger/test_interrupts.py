"""Ctrl-C at the keyboard: it pauses, it interrupts what does not pause, and it never ends a program that stands
still."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger import signals
from adbg.tui.debugger.debugger import State
from adbg.tui.debugger.signals import Interrupts

Make = Callable[..., Watched]


def busy_program(watched: Make, pauses: bool) -> Watched:
    """A program that runs, and stops when it is asked to, or never does."""

    def prepare(agent: ScriptedAgent) -> None:
        agent.on_begin = lambda: None
        if not pauses:
            agent.do_pause = lambda arguments: protocol.Empty()  # type: ignore[attr-defined]

    one = watched(prepare=prepare)
    one.start()
    one.debugger.begin()
    one.settle(State.RUNNING)
    return one


def test_any_number_at_a_stop_sends_nothing(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    keyboard = Interrupts(one.debugger)
    assert ["stopped already" in keyboard.press() for _ in range(5)] == [True] * 5
    assert one.program.signals == [] and one.debugger.state is State.STOPPED


def test_the_second_one_may_come_before_the_stop_that_the_first_asked_for(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "ARRIVES", 5.0)
    one = busy_program(watched, pauses=True)
    keyboard = Interrupts(one.debugger)
    assert "pausing" in keyboard.press()
    assert "stopped already" in keyboard.press()
    assert one.program.signals == [] and one.debugger.state is State.STOPPED


def test_a_program_that_does_not_pause_is_interrupted(watched: Make) -> None:
    one = busy_program(watched, pauses=False)
    keyboard = Interrupts(one.debugger)
    assert "pausing" in keyboard.press()
    assert one.program.signals == []
    assert "SIGINT sent" in keyboard.press()
    assert one.program.signals == [2]
    assert "pausing" in keyboard.press(), "the third one is a first one"
    assert one.program.signals == [2]


def test_one_that_was_obeyed_does_not_count_for_the_next(watched: Make) -> None:
    """Pause, continue, pause within two seconds: no SIGINT."""
    one = busy_program(watched, pauses=True)
    keyboard = Interrupts(one.debugger)
    keyboard.press()
    one.settle(State.STOPPED)
    agent = one.program.agents[0]
    agent.do_pause = lambda arguments: protocol.Empty()  # type: ignore[attr-defined]
    agent.do_continue = lambda arguments: protocol.Empty()  # type: ignore[method-assign]
    one.debugger.resume(protocol.Continue())
    assert "pausing" in keyboard.press()
    assert one.program.signals == []


def test_a_command_that_does_not_end_is_interrupted_by_the_second_one(watched: Make) -> None:
    one = watched()
    one.stop_at("Relu")
    keyboard = Interrupts(one.debugger)
    assert "again within 2 s" in keyboard.press(lambda: True)
    assert one.program.signals == []
    assert "interrupted" in keyboard.press(lambda: True)
    assert one.program.signals == [2]
