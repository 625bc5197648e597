"""Signals sent to adbg: some are forwarded to the program, others end adbg and leave the program running. Main thread
only."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from adbg.tui.debugger.debugger import Debugger, State


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
