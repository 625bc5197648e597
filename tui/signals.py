"""Signals that reach adbg: those that mean the program are handed on, those that mean adbg let the program go on. Main
thread only."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from adbg.tui.debugger import Debugger, State


@contextlib.contextmanager
def handed_on(debugger: Debugger, names: Sequence[str]) -> Iterator[None]:
    """Within this block the named signals go to the program (also to one that was restarted meanwhile). A signal
    that was ignored when adbg started (nohup, a background job) stays ignored."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if debugger.state in (State.NEW, State.EXITED):  # no program it could mean
            signal.signal(number, before.get(number, signal.SIG_DFL))
            signal.raise_signal(number)
            return
        debugger.send_signal(number)

    before: dict[int, Any] = {}
    try:
        for name in names:
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, hand_on)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def letting_go(debugger: Debugger, names: Sequence[str]) -> Iterator[None]:
    """Within this block the named signals end adbg (``SystemExit`` with 128 and their number) and not the program: a
    connection that drops (SIGHUP) must not cost a training. A signal that was ignored stays ignored."""

    def go(number: int, _frame: FrameType | None) -> None:
        debugger.let_go()
        raise SystemExit(128 + number)

    before: dict[int, Any] = {}
    try:
        for name in names:
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, go)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
