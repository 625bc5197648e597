"""When to say that the program waits for input: asked again and again by whoever shows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from adbg.tui.debugger.model import State

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

PERIOD = 0.2  # seconds between two questions
SURE = 2  # answers in a row: a line that was typed ahead is read at once
OVER = 5  # answers in a row: between two questions of a program its keyboard stays its own


class InputWatch:
    """``poll`` as often as you like, on one thread. The program is not touched: see ``engine.launch.input_wait``.

    Attributes:
        wait: "line" or "secret" (no echo) while the program waits, "" else.
    """

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._asked = 0.0
        self._same = 0  # answers in a row that differ from what is told
        self.wait = ""

    def poll(self) -> str:
        """``wait`` as it is now."""
        if not self._debugger.alive or self._debugger.state is State.STOPPED:
            self.wait, self._same = "", 0
            return ""
        now = time.monotonic()
        if now - self._asked < PERIOD:
            return self.wait
        self._asked = now
        found = self._debugger.program.input_wait()
        if found == self.wait:
            self._same = 0
            return found
        self._same += 1
        if self._same >= (SURE if found else OVER):
            self.wait, self._same = found, 0
        return self.wait
