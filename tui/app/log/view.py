"""What of a log has a line, and where: rows folded, filtered, unfolded to their whole text, marked. No widget; UI
thread."""

from __future__ import annotations

import bisect
import re
from array import array

from adbg.tui.app.log.folds import OPEN, Filter, Folds, wanted
from adbg.tui.app.log.line_map import LineMap
from adbg.tui.app.log.store import LogStore
from adbg.tui.text import cells as figures

BLOCK_LINES = 500


class LogView:
    """Lines of ``store``; ``take_in`` has to follow each change of it.

    Attributes:
        filter: what is kept and how far that is known; None: all.
        filter_text: as the user wrote it.
        columns: thread and place in the source are shown.
        stop: row of the last stop, which has its line whatever is folded around it; -1: none.
    """

    def __init__(self, path: str = "", filter_text: str = "") -> None:
        self.store = LogStore(path)
        self.map = LineMap()
        self.columns = True
        self.filter_text = filter_text
        self.filter = Filter(self.store, wanted(filter_text)) if filter_text else None
        self.marks: list[int] = []
        self.stop = -1
        self._way: list[int] = []  # rows that were unfolded for it
        self._folds = Folds()
        self._dropped = 0
        self._seen = 0  # rows that have their lines

    # ---- coming in

    def take_in(self) -> int:
        """Rows were added, or given up at the front; returns how many were given up."""
        gone = self._shifted() if self.store.dropped != self._dropped or len(self.store) < self._seen else 0
        if self.filter is not None:
            self.map.rows = self.filter.rows
        elif self.map.rows is not None:
            self.map.rows.extend(self._folds.rows(self.store, self._seen))
        self._seen = self.map.total = len(self.store)
        return gone

    def _shifted(self) -> int:
        gone = self.store.dropped - self._dropped if self.store.dropped != self._dropped else self._seen
        self._dropped = self.store.dropped
        self._folds.shift(gone)
        self.marks = [mark - gone for mark in self.marks if mark >= gone]
        self.stop = max(self.stop - gone, -1)
        self._way = [row - gone for row in self._way if row >= gone]
        self.map.blocks.clear()
        if self.filter is not None:
            self.filter.shift(gone)
        self._seen = 0
        if self.map.rows is not None:
            self.map.rows = array("q")
        return gone

    @property
    def filtering(self) -> bool:
        """Rows are there that the filter has not looked at."""
        return self.filter is not None and self.filter.position < len(self.store)

    # ---- lines

    def line_count(self) -> int:
        return self.map.count()

    def row_at(self, line: int) -> int:
        """Row of the store behind a line."""
        return self.map.at(line)[0]

    def line_of(self, row: int) -> int:
        """Line of a row, or of the row before it that has one."""
        return self.map.line_of(row)

    def words(self) -> list[str]:
        """What the user should know of the lines: how many there are, what is missing."""
        store = self.store
        size = len(store) + store.dropped
        words = [f"{figures.count(size)} record{'s' * (size != 1)}"]
        if store.dropped:
            words.append(f"{figures.count(store.dropped)} oldest dropped")
        if store.behind > 1_000_000:
            words.append(f"{store.behind / 1e6:.0f} MB to read")
        if store.unpacking:
            words.append("unpacking")
        if store.error and store.size:
            words.append(store.error)
        if self._folds.depth < OPEN:
            words.append(f"folded at {self._folds.depth}")
        if self._folds.closed:
            words.append(f"{len(self._folds.closed)} folded")
        if self.filter is not None:
            words.append(f"{figures.count(self.filter.hits)} match & {self.filter_text}")
        return words

    # ---- folding

    def can_fold(self, row: int) -> bool:
        """There are lines below ``row``, or would be."""
        return self.filter is None and self.store.has_children(row)

    def is_folded(self, row: int) -> bool:
        """``row`` can fold, and is."""
        return self.can_fold(row) and self._folds.is_closed(self.store, row)

    def fold(self, row: int, close: bool) -> int:
        """Fold or unfold what lies below ``row``; returns it, -1 where nothing can fold."""
        if row < 0 or not self.can_fold(row):
            return -1
        self._folds.fold(self.store, row, close)
        self.lay_out()
        return row

    def toggle_at(self, line: int) -> int:
        """Fold or unfold the record at ``line``, its text, or the record it lies in; returns its row, -1 for none."""
        if not self.line_count():
            return -1
        row, inner = self.map.at(line)
        if inner or (not self.can_fold(row) and self.store.line(row).block):
            return self.toggle_block(row)
        return (
            self.fold(row, not self.is_folded(row))
            if self.can_fold(row)
            else self.fold(self.store.holder_of(row), True)
        )

    def open_at(self, line: int) -> int:
        """Fold or unfold the text of the record at ``line``, else what lies below it; returns its row, -1 for
        neither."""
        row = self.row_at(line)
        return self.toggle_block(row) if self.store.line(row).block else self.fold(row, not self.is_folded(row))

    def fold_at(self, line: int, close: bool) -> int:
        """Fold or unfold the record at ``line`` or its text; what is folded already folds the record it lies in."""
        if not self.line_count():
            return -1
        row, inner = self.map.at(line)
        unfolded = row in self.map.blocks
        if inner or (not self.can_fold(row) and self.store.line(row).block and unfolded == close):
            return self.toggle_block(row)
        if close and (not self.can_fold(row) or self.is_folded(row)):
            row = self.store.holder_of(row)
        return self.fold(row, close)

    def fold_all(self, depth: int) -> None:
        """Fold all that lies deeper than ``depth``; OPEN unfolds all."""
        self._folds.all(depth)
        self._way = []
        if self.stop >= 0:
            self._way = self._unfold_around(self.stop)
        self.lay_out()

    def next_depth(self, step: int) -> int:
        """The depth to fold all at: one step from the present one; from OPEN all is folded."""
        depths = self.store.depths
        deepest = next((depth for depth in range(OPEN, 0, -1) if depth in depths), 0)  # 0.02 ms each a million
        depth = self._folds.depth
        depth = min(0 if step < 0 and depth == OPEN else depth + step, OPEN)
        return OPEN if depth >= deepest else max(depth, 0)

    def uncover(self, row: int) -> bool:
        """Unfold what ``row`` is folded into; False when it had its line."""
        if self.filter is not None or self.map.rows is None or self.map.has(row):
            return False
        self._unfold_around(row)
        self.lay_out()
        return True

    def _unfold_around(self, row: int) -> list[int]:
        opened = []
        while (row := self.store.holder_of(row)) >= 0:
            if self._folds.is_closed(self.store, row):
                self._folds.fold(self.store, row, close=False)
                opened.append(row)
        return opened

    def uncover_stop(self, row: int) -> None:
        """``row`` is the current stop: unfold the way to it, and fold again what had to be unfolded for the last
        one."""
        self.stop = row
        for opened in self._way:
            self._folds.fold(self.store, opened, close=True)
        self._way = self._unfold_around(row)
        self.lay_out()

    def toggle_block(self, row: int) -> int:
        """Show the whole text of ``row`` below it, or not; returns it."""
        lines = 0 if row in self.map.blocks else min(len(self.store.block(row)), BLOCK_LINES)
        self.map.unfold(row, lines)
        return row

    def show_in_block(self, row: int, match: re.Pattern[str]) -> int:
        """Show the text of ``row``; which of its lines, from 1, matches, 0 for none."""
        if row not in self.map.blocks and self.store.line(row).block:
            self.toggle_block(row)
        lines = self.store.block(row)[: self.map.blocks.get(row, 0)]
        return next((number for number, line in enumerate(lines, 1) if match.search(line)), 0)

    def lay_out(self) -> None:
        """All lines again."""
        if self.filter is not None:
            self.map.rows = self.filter.rows
        else:
            self.map.rows = self._folds.rows(self.store) if self._folds.any else None
        self.map.total = self._seen = len(self.store)

    # ---- what is looked for

    def set_filter(self, text: str) -> None:
        """``logfolds.wanted`` has the words; "" shows all. The caller has it ``advance``. Raises CommandError."""
        what = wanted(text) if text else None
        self.filter_text = text
        self.filter = Filter(self.store, what) if what is not None else None
        self.map.blocks.clear()
        self.lay_out()

    def next_alarm(self, row: int, step: int) -> int:
        """The next warning or error that has a line, or would have unfolded; -1 when there is none."""
        return self.store.next_alarm(row, step, None if self.filter is None else self.filter.rows)

    def toggle_mark(self, row: int) -> None:
        self.marks = [m for m in self.marks if m != row] if row in self.marks else sorted([*self.marks, row])

    def next_mark(self, row: int) -> int:
        """The mark behind ``row``, around the end; -1 when there is none."""
        return self.marks[bisect.bisect_right(self.marks, row) % len(self.marks)] if self.marks else -1
