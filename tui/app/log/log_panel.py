"""A log as lines on the screen: taken in, followed, walked, folded, marked. UI thread."""

from __future__ import annotations

import re
from typing import Any

from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.log.drawing import drawn
from adbg.tui.app.log.folds import OPEN
from adbg.tui.app.log.store import LogStore
from adbg.tui.app.log.view import LogView
from adbg.tui.text.cells import Spans


class LogPanel(LinePanel):
    """Shows ``view``; ``poll`` is called by the app's timer.

    Attributes:
        following: the cursor stays on the last line.
        waiting: what stands there while there is no log.
        match: what stands out in all lines.
    """

    BINDINGS = [*bindings("foldable"), *bindings("vlog")]
    keeps_lines = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.view = LogView()
        self.following = True
        self.waiting = "no log yet: `vlog 4` turns it on, 3 (calls) to 6 (unique names)"
        self.match: re.Pattern[str] | None = None

    @property
    def store(self) -> LogStore:
        return self.view.store

    @property
    def filter_text(self) -> str:
        """What is kept of the log, as the person wrote it."""
        return self.view.filter_text

    # ---- coming in

    def poll(self) -> None:
        """Take in what was appended."""
        if self.store.poll():
            self.grown()
        self.tell_frame(self.subtitle_text())

    def grown(self) -> None:
        """Rows were added, given up at the front, or kept by the filter."""
        self.taken_in(self.view.take_in())
        if self.following:
            self.cursor = max(self.line_count() - 1, 0)
        self.lines_changed()
        if self.following:
            self.call_after_refresh(self.reveal, self.cursor)

    def taken_in(self, gone: int) -> None:
        """For what else knows of rows: the first ``gone`` went away, and there may be more at the end."""

    def open_file(self, path: str) -> None:
        """Follow the log of another run."""
        if path != self.store.path:
            self.store.close()
            columns = self.view.columns
            self.view = LogView(path, self.filter_text)
            self.view.columns = columns
            self.grown()

    # ---- lines

    def line_count(self) -> int:
        return self.view.line_count()

    def empty_text(self) -> str:
        return self.store.error if self.store.error and self.store.size == 0 and self.store.unpacked else self.waiting

    def row_at(self, line: int) -> int:
        """Row of the store behind a line."""
        return self.view.row_at(line)

    def line(self, row: int, width: int) -> Spans:
        return drawn(self.view, row, width, self.match)

    def lines_changed(self) -> None:
        super().lines_changed()
        self.tell_frame(self.subtitle_text())

    def subtitle_text(self) -> str:
        """How much there is."""
        cut = [self.store.error] if self.store.error and len(self.store) else []
        return " · ".join([*(["FOLLOW"] if self.following else []), *self.view.words(), *cut])

    # ---- moving

    def select(self, row: int, notify: bool = True) -> None:
        self.following = row >= self.line_count() - 1
        super().select(row, notify)
        self.tell_frame(self.subtitle_text())

    def on_mouse_scroll_up(self) -> None:
        self.following = False
        self.tell_frame(self.subtitle_text())

    def action_follow(self) -> None:
        self.following = not self.following
        if self.following:
            self.action_last()
        self.tell_frame(self.subtitle_text())

    def action_columns(self) -> None:
        """Thread and place, or only what was said."""
        self.view.columns = not self.view.columns
        self.refresh()

    def go_to(self, row: int, notify: bool = True) -> None:
        """The cursor to a row of the store, whatever it is folded into."""
        if self.view.uncover(row):
            self.lines_changed()
        self.select(self.view.line_of(row), notify)

    # ---- folding

    def action_fold(self) -> None:
        """Fold or unfold the record under the cursor, its text, or the one it lies in."""
        if not self.line_count():
            return
        row, inner = self.view.map.at(self.cursor)
        if inner or (not self.view.can_fold(row) and self.store.line(row).block):
            self.toggle_block(row)
        elif self.view.can_fold(row):
            self._fold(row, not self.view.is_folded(row))
        else:
            self._fold(self.store.holder_of(row), True)

    def open_record(self) -> bool:
        """Unfold or fold the whole text of a record, else what lies in it. False where there is neither."""
        if not self.line_count():
            return True
        row = self.row_at(self.cursor)
        if self.store.line(row).block:
            self.toggle_block(row)
        elif self.view.can_fold(row):
            self._fold(row, not self.view.is_folded(row))
        else:
            return False
        return True

    def action_fold_to(self, direction: int) -> None:
        """h folds, l unfolds."""
        if not self.line_count():
            return
        view = self.view
        row, inner = view.map.at(self.cursor)
        unfolded = row in view.map.blocks
        if inner or (not view.can_fold(row) and self.store.line(row).block and unfolded != (direction > 0)):
            self.toggle_block(row)
            return
        if direction < 0 and (not view.can_fold(row) or view.is_folded(row)):
            row = self.store.holder_of(row)
        self._fold(row, direction < 0)

    def action_fold_level(self, step: int) -> None:
        """< folds all, one level more each time; > one less."""
        if len(self.store):
            self.fold_all(self.view.next_depth(step))

    def fold_all(self, depth: int) -> None:
        """Fold all that lies deeper than ``depth``; OPEN unfolds all."""
        row = self.row_at(self.cursor) if self.line_count() else 0
        self.view.fold_all(min(depth, OPEN))
        self._laid_out(row)

    def _fold(self, row: int, fold: bool) -> None:
        if row >= 0 and self.view.can_fold(row):
            self.view.fold(row, fold)
            self._laid_out(row)

    def toggle_block(self, row: int) -> None:
        """The whole text of ``row`` below it, or not."""
        self.view.toggle_block(row)
        self._laid_out(row)

    def _laid_out(self, row: int) -> None:
        """The lines are others; the cursor stays on ``row``."""
        self.lines_changed()
        self.select(self.view.line_of(row), notify=False)

    # ---- places

    def next_bad(self, step: int) -> bool:
        """To the next warning or error."""
        row = self.view.next_alarm(self.row_at(self.cursor) if self.line_count() else 0, step)
        if row >= 0:
            self.go_to(row)
        return row >= 0

    def toggle_mark(self) -> None:
        if self.line_count():
            self.view.toggle_mark(self.row_at(self.cursor))
            self.refresh()

    def to_mark(self) -> bool:
        row = self.view.next_mark(self.row_at(self.cursor)) if self.line_count() else -1
        if row >= 0:
            self.go_to(row)
        return row >= 0

    def copied(self) -> str:
        """What `y` copies."""
        return self.store.raw(self.row_at(self.cursor)).strip() if self.line_count() else ""
