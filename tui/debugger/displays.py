"""The display list and the watch list: expressions whose values are shown at every stop.

A display is shown. A watch also remembers its value from stop to stop and marks it when it changed. Values are read
once per stop, on the thread that asks (never the dispatcher).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from adbg.engine.errors import AdbgError, CommandError
from adbg.tui.debugger.reports import value_text
from adbg.tui.debugger.stop_view import Shown

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger


class ShownList:
    """Numbers count from 1 over both lists."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._rows: dict[int, Shown] = {}
        self._last = 0
        self._lock = threading.Lock()
        self._read_at: dict[int, tuple[int, int]] = {}  # number -> (process, stop serial) of its value

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> tuple[Shown, ...]:
        """With the values last read."""
        return tuple(self._rows.values())

    def add(self, expression: str, watched: bool, format: str = "") -> Shown:
        """The new entry, with its value when the program is stopped."""
        with self._lock:
            self._last += 1
            row = Shown(self._last, expression, watched, format)
            process = self._debugger.current
            if process is not None and process.stop is not None:
                row = self._read(row)
                self._read_at[row.number] = (process.number, process.stop_serial)
            self._rows[row.number] = row
        self._debugger.tell_shown()
        return row

    def remove(self, number: int) -> None:
        """Raises CommandError naming the numbers there are."""
        with self._lock:
            if self._rows.pop(number, None) is None:
                have = ", ".join(map(str, self._rows)) or "none"
                raise CommandError(f"no display or watch number {number}", f"there are: {have}")
        self._debugger.tell_shown()

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()
        self._debugger.tell_shown()

    def forget(self) -> None:
        """Values are read again (something was edited)."""
        self._read_at.clear()

    def values(self) -> tuple[Shown, ...]:
        """Read at this stop; as they were while the program runs."""
        process = self._debugger.current
        if process is None or process.stop is None:
            return self.rows()
        with self._lock:
            here = (process.number, process.stop_serial)
            for number, row in list(self._rows.items()):
                if self._read_at.get(number) != here:
                    self._rows[number] = self._read(row)
                    self._read_at[number] = here
            return self.rows()

    def _read(self, row: Shown) -> Shown:
        try:
            text, error = value_text(self._debugger, row.expression, row.format), ""
        except AdbgError as problem:
            text, error = "", problem.message
        if not row.watched:
            return replace(row, text=text, error=error)
        known = row.text or row.before
        if error:  # not to be had here (a name of another frame): the last value stays the one to compare with
            return replace(row, text="", error=error, changed=None, before=known)
        changed = None if not known else text != known
        return replace(row, text=text, error="", changed=changed, before=known if changed else "")
