"""The display list and the watch list: expressions whose values are shown at every stop.

A display is shown. A watch also remembers its value from stop to stop and marks it when it changed. Values are read
once per stop, on the thread that asks (never the events thread).
"""

from __future__ import annotations

import threading
from dataclasses import replace

from adbg.engine.errors import AdbgError, CommandError
from adbg.tui.debugger import events
from adbg.tui.debugger.model import Model
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.reports import value_text
from adbg.tui.debugger.stop_view import Shown


class DisplayList:
    """Both lists; numbers count from 1 over the two."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._rows: dict[int, Shown] = {}
        self._last = 0
        self._lock = threading.Lock()  # held while values are read: see ``model``
        self._read_at: dict[int, tuple[int, int]] = {}  # number -> (process, stop serial) of its value

    def rows(self) -> tuple[Shown, ...]:
        """With the values last read."""
        return tuple(self._rows.values())

    def add(self, expression: str, watched: bool, format: str = "") -> Shown:
        """The new entry, with its value when the program is stopped."""
        with self._lock:
            self._last += 1
            row = Shown(self._last, expression, watched, format)
            process = self._stopped()
            if process is not None:
                row = self._read(row, process)
            self._rows[row.number] = row
        self._model.tell(events.ShownChanged())
        return row

    def remove(self, number: int) -> None:
        """Raises CommandError listing the valid numbers."""
        with self._lock:
            if self._rows.pop(number, None) is None:
                have = ", ".join(map(str, self._rows)) or "none"
                raise CommandError(f"no display or watch number {number}", f"displays and watches: {have}")
        self._model.tell(events.ShownChanged())

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()
        self._model.tell(events.ShownChanged())

    def forget(self) -> None:
        """Read the values again when they are next asked for: something was edited."""
        self._read_at.clear()

    def values(self) -> tuple[Shown, ...]:
        """Read at this stop, once (again after ``forget``); while the program runs, as they were."""
        process = self._stopped()
        if process is None:
            return self.rows()
        with self._lock:
            for number, row in list(self._rows.items()):
                if self._read_at.get(number) != (process.number, process.stop_serial):
                    self._rows[number] = self._read(row, process)
            return self.rows()

    def _stopped(self) -> Process | None:
        """The current process, if it is stopped."""
        process = self._model.run.current
        return process if process is not None and process.stop is not None else None

    def _read(self, row: Shown, process: Process) -> Shown:
        self._read_at[row.number] = (process.number, process.stop_serial)
        try:
            text, error = value_text(process.view, row.expression, row.format), ""
        except AdbgError as problem:
            text, error = "", problem.message
        if not row.watched:
            return replace(row, text=text, error=error)
        known = row.text or row.before
        if error:  # not available here (a name of another frame): keep the last value to compare with
            return replace(row, text="", error=error, changed=None, before=known)
        changed = None if not known else text != known
        return replace(row, text=text, error="", changed=changed, before=known if changed else "")
