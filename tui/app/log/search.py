"""Looking for the next match in a log of any length, piece by piece: the caller says for how long. UI thread."""

from __future__ import annotations

import time
from array import array

from adbg.tui.app.log.sought import Sought
from adbg.tui.app.log.store import PIECE, LogStore, contains


class Search:
    """From the row behind (``step`` 1) or before (-1) ``row``, around the end, until a row matches.

    ``among``: only rows in it count. Rows that come meanwhile are not looked at.

    Attributes:
        found: the row, -1 while there is none.
        done: nothing is left to look at.
    """

    def __init__(self, store: LogStore, pattern: Sought, row: int, step: int, among: array[int] | None = None) -> None:
        self.found = -1
        self._store = store
        self._pattern = pattern
        self._step = step
        self._among = among
        size = len(store)
        self._parts = [(row + 1, size), (0, row + 1)] if step > 0 else [(0, row), (row, size)]
        self._all = max(size, 1)

    @property
    def done(self) -> bool:
        return self.found >= 0 or not self._parts

    @property
    def share(self) -> float:
        """How much was looked at, 0 to 1."""
        return 1 - sum(max(stop - start, 0) for start, stop in self._parts) / self._all

    def advance(self, seconds: float) -> bool:
        """Look on for that long, one piece at least; returns ``done``."""
        deadline = time.monotonic() + seconds
        while not self.done:
            self._piece()
            if time.monotonic() > deadline:
                break
        return self.done

    def shift(self, rows: int) -> None:
        """The first ``rows`` rows went away."""
        self._parts = [(max(start - rows, 0), max(stop - rows, 0)) for start, stop in self._parts]

    def _piece(self) -> None:
        start, stop = self._parts[0]
        stop = min(stop, len(self._store))
        if start >= stop:
            del self._parts[0]
            return
        if self._step > 0:
            low, high = start, self._store.piece_end(start, stop, PIECE)
            self._parts[0] = (high, stop)
        else:
            low, high = self._store.piece_start(start, stop, PIECE), stop
            self._parts[0] = (start, low)
        rows = self._store.matching(self._pattern, low, high)
        if self._among is not None:
            rows = [row for row in rows if contains(self._among, row)]
        if rows:
            self.found = rows[0 if self._step > 0 else -1]
