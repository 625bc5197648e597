"""Signals sent to adbg: some are forwarded to the program, others end adbg and leave the program running (main thread
only). And what Ctrl-C at the keyboard means (any thread)."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from adbg.tui.debugger.debugger import Debugger, State

TWICE = 2.0  # seconds within which a second Ctrl-C is SIGINT to a program that does not pause
ARRIVES = 0.5  # seconds: the stop that the first one asked for may be on its way


class Interrupts:
    """Ctrl-C at the keyboard of an interactive front end.

    It pauses a program that runs; a second one within ``TWICE`` seconds is SIGINT to it. At a stop it never is: the
    KeyboardInterrupt would end a run that only stands still. The exception is a command that has not ended (an
    expression that loops): there the second one ends that command.
    """

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._pressed = float("-inf")
        self._stops: list[int] = []  # of each process, when it was pressed last
        self._one_by_one = threading.Lock()
        self.prompt_wanted = threading.Event()  # a program that was found running does not stop: give the prompt back

    def forget(self) -> None:
        """The next one is the first."""
        self._pressed = float("-inf")
        self.prompt_wanted.clear()

    def press(self, busy: Callable[[], bool] = lambda: False) -> str:
        """Deal with one Ctrl-C; what to tell the user. ``busy``: a command is being executed. May take ``ARRIVES``
        seconds.

        Raises:
            AdbgError: the program cannot be paused.
        """
        with self._one_by_one:
            return self._press(busy)

    def _press(self, busy: Callable[[], bool]) -> str:
        debugger = self._debugger
        now, stops = time.monotonic(), [process.stop_serial for process in debugger.processes]
        again = now - self._pressed < TWICE and stops == self._stops  # what stopped and went on since has obeyed
        self._pressed, self._stops = now, stops
        if debugger.state is State.STOPPED:
            return self._at_stop(busy, again)
        if again and debugger.state is State.RUNNING:
            debugger.model.wait_state(State.STOPPED, State.EXITED, State.DETACHED, timeout=ARRIVES)
            if debugger.stop is not None:
                return STOPPED
        if not debugger.alive:
            return "no program is running"
        if debugger.program.attachment is not None:
            return self._at_attached(again)
        if again or debugger.state is not State.RUNNING or not debugger.run.joined:
            self.forget()
            debugger.interrupt()
            return "SIGINT sent to the program"
        debugger.pause()
        return "pausing at the next node; Ctrl-C again within 2 s interrupts the program (SIGINT)"

    def _at_attached(self, again: bool) -> str:
        """Never SIGINT: it would end a program that is somebody's job."""
        debugger = self._debugger
        attachment = debugger.program.attachment
        if attachment is not None and not debugger.run.joined:
            attachment.stop_entering()
            return "giving up; the program runs on"
        if again:
            self.forget()
            self.prompt_wanted.set()
            return "the program stops at its next node; it runs on meanwhile (`interrupt` sends it SIGINT)"
        debugger.pause()
        return "pausing at the next node that any backward reaches; Ctrl-C again within 2 s stops waiting for it"

    def _at_stop(self, busy: Callable[[], bool], again: bool) -> str:
        if not busy():
            self.forget()
            return STOPPED
        if not again:
            return "a command is being executed; Ctrl-C again within 2 s interrupts it"
        self.forget()
        self._debugger.interrupt()
        return "the command is interrupted"


STOPPED = "the program is stopped already: `continue` resumes it, `interrupt` sends it SIGINT"


@contextlib.contextmanager
def handed_on(debugger: Debugger, names: Sequence[str]) -> Iterator[None]:
    """Within this block the named signals go to the program (also to one that was restarted meanwhile)."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if debugger.state in (State.NEW, State.EXITED):  # no program it could mean
            signal.signal(number, before.get(number, signal.SIG_DFL))
            signal.raise_signal(number)
            return
        debugger.program.signal(number)

    with _handled(names, hand_on) as before:
        yield


@contextlib.contextmanager
def letting_go(debugger: Debugger, names: Sequence[str]) -> Iterator[None]:
    """Within this block the named signals end adbg (``SystemExit`` with 128 and their number) and not the program: a
    connection that drops (SIGHUP) must not cost a training."""

    def go(number: int, _frame: FrameType | None) -> None:
        debugger.let_go()
        raise SystemExit(128 + number)

    with _handled(names, go):
        yield


@contextlib.contextmanager
def _handled(names: Sequence[str], handler: Callable[[int, FrameType | None], None]) -> Iterator[dict[int, Any]]:
    """The named signals go to ``handler``; yields the handlers of before by number. A signal that was ignored when adbg
    started (nohup, a background job) stays ignored."""
    before: dict[int, Any] = {}
    try:
        for name in names:
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
