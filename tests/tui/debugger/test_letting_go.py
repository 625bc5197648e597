"""Signals that end adbg: the exception is raised wherever the main thread is, also where it is swallowed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from adbg.tui.debugger.signals import letting_go

SWALLOWS = """
import os, signal, sys, time
from adbg.tui.debugger.signals import letting_go

class Debugger:
    def let_go(self):
        os.write(1, b"let go\\n")

class Finalizer:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGHUP)
        while "go" not in seen: time.sleep(0.01)  # the handler raises in here

class Seen:
    def __contains__(self, word): return False

seen = Seen()
with letting_go(Debugger(), ("SIGHUP",)):
    Finalizer()
    os.write(1, b"swallowed\\n")
    time.sleep(100)
"""


def test_it_comes_again_where_it_was_swallowed() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWS], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["let go", "swallowed", "let go"], done
    assert done.returncode == 128 + signal.SIGHUP


def test_not_when_the_block_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adbg.tui.debugger.signals.AGAIN", 0.2)
    told: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, frame: told.append(number))
    try:

        class Debugger:
            def let_go(self) -> None:
                pass

        with pytest.raises(SystemExit), letting_go(Debugger(), ("SIGHUP",)):  # type: ignore[arg-type]
            os.kill(os.getpid(), signal.SIGHUP)
            signal.pause()
        signal.sigtimedwait([], 0.6)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told == []
