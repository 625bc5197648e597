"""Lines of the log panel: which row each is, and which line of an unfolded record. UI thread."""

from __future__ import annotations

import bisect
from array import array


class LineMap:
    """``rows`` that have a line (None: all ``total``), and below some of them ``blocks[row]`` lines of text."""

    def __init__(self) -> None:
        self.rows: array[int] | None = None
        self.total = 0
        self.blocks: dict[int, int] = {}

    def unfold(self, row: int, lines: int) -> None:
        """Show that many lines of its text below ``row``; 0: none."""
        if lines:
            self.blocks[row] = lines
        else:
            self.blocks.pop(row, None)

    def count(self) -> int:
        """Number of lines."""
        rows = self.total if self.rows is None else len(self.rows)
        return rows + sum(lines for row, lines in self.blocks.items() if self.has(row)) if self.blocks else rows

    def has(self, row: int) -> bool:
        """``row`` has a line."""
        if self.rows is None:
            return 0 <= row < self.total
        at = bisect.bisect_left(self.rows, row)
        return at < len(self.rows) and self.rows[at] == row

    def at(self, line: int) -> tuple[int, int]:
        """Row of a line, and 0 or which line of its text (from 1)."""
        above = 0
        for row in sorted(self.blocks) if self.blocks else ():
            if not self.has(row):
                continue
            place = self._place(row) + above
            if line <= place:
                break
            if line <= place + self.blocks[row]:
                return row, line - place
            above += self.blocks[row]
        line -= above
        return (line if self.rows is None else self.rows[line]), 0

    def line_of(self, row: int) -> int:
        """Line of ``row``, or of the row before it that has one."""
        place = self._place(row)
        return place + sum(lines for other, lines in self.blocks.items() if other < row and self.has(other))

    def _place(self, row: int) -> int:
        return row if self.rows is None else max(bisect.bisect_right(self.rows, row) - 1, 0)
