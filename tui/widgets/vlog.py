"""Panel 2: what the framework says (VLOG), and stops and traces between it: indented, folded, followed, filtered. UI
thread."""

from __future__ import annotations

import bisect
import re
from array import array
from typing import Any

from adbg.engine.errors import CommandError
from adbg.tui.keymap import bindings
from adbg.tui.widgets import figures
from adbg.tui.widgets.figures import Spans, elide, width_of
from adbg.tui.widgets.linepanel import LinePanel
from adbg.tui.widgets.logstore import LogStore

_LEVEL_STYLE = {"W": "warn", "E": "bad", "F": "bad", "■": "stop"}


class VlogPanel(LinePanel):
    """Reads ``store``; ``poll`` is called by the app's timer.

    Attributes:
        following: the cursor stays on the last line.
    """

    BINDINGS = [*bindings("foldable"), *bindings("vlog")]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.store = LogStore()
        self.following = True
        self.levels = ""  # as the agent says them
        self.filter_text = ""
        self.waiting = "no log yet: `vlog 4` turns it on, 3 (calls) to 6 (unique names)"
        self._keep: re.Pattern[str] | None = None
        self._near = 0
        self._folded: set[int] = set()
        self._rows: array[int] | None = None
        self._match: re.Pattern[str] | None = None
        self._marks: list[int] = []

    # ---- coming in

    def poll(self) -> None:
        """Take in what was appended."""
        if self.store.poll():
            self.grown()

    def note(self, text: str, time: str) -> None:
        """A stop or a trace."""
        self.store.poll()
        self.store.note(text, time)
        self.grown()

    def grown(self) -> None:
        """Lines were added."""
        self._refold()
        if self.following:
            self.cursor = max(self.line_count() - 1, 0)
        self.lines_changed()
        if self.following:
            self.call_after_refresh(self.reveal, self.cursor)

    def open_file(self, path: str) -> None:
        """Follow the log of another run."""
        if path != self.store.path:
            self.store.close()
            self.store = LogStore(path)
            self._folded, self._marks = set(), []
            self.grown()

    # ---- lines

    def line_count(self) -> int:
        return len(self.store) if self._rows is None else len(self._rows)

    def empty_text(self) -> str:
        return "no line matches the filter: & changes it" if self.filter_text and len(self.store) else self.waiting

    def row_at(self, line: int) -> int:
        """Row of the store behind a line."""
        return line if self._rows is None else self._rows[line]

    def line_of(self, row: int) -> int:
        """Line of a row, or of the row before it that has one."""
        if self._rows is None:
            return row
        return max(bisect.bisect_right(self._rows, row) - 1, 0)

    def lines_changed(self) -> None:
        super().lines_changed()
        self.tell_frame(self.subtitle_text())

    def subtitle_text(self) -> str:
        words = ["FOLLOW"] if self.following else []
        words.append(f"{figures.count(len(self.store))} line{'s' * (len(self.store) != 1)}")
        if self._folded:
            words.append(f"{len(self._folded)} folded")
        if self.filter_text:
            words.append(f"{figures.count(self.line_count())} match & {self.filter_text}")
        return " · ".join(words)

    def line(self, row: int, width: int) -> Spans:
        number = self.row_at(row)
        line = self.store.line(number)
        depth = self.store.depths[number]
        time = line.time if width >= 50 else line.time[3:]
        spans: Spans = [
            ("'" if number in self._marks else " ", "key"),
            (f"{time:>{9 if width >= 50 else 6}} ", "faint"),
        ]
        spans.append((f"{line.level:<1} ", _LEVEL_STYLE.get(line.level, "dim")))
        guide = "│ " * min(depth, max((width - 40) // 2, 2))
        spans.append((guide, "faint"))
        folded = number in self._folded
        if self.store.has_children(number):
            spans.append(("▸ " if folded else "▾ ", "key" if folded else "dim"))
        elif line.level:
            spans.append(("  ", ""))
        style = {"W": "warn", "E": "bad", "F": "bad", "■": "stop", "": "dim"}.get(line.level, "")
        tail = f"  +{figures.count(self.store.end_of(number) - number - 1)}" if folded else ""
        room = max(width - width_of(spans) - len(tail), 4)
        spans += self._matched(elide(line.text, room), style)
        if tail:
            spans.append((tail, "key"))
        return spans

    def _matched(self, text: str, style: str) -> Spans:
        if self._match is None:
            return [(text, style)]
        spans: Spans = []
        end = 0
        for found in self._match.finditer(text):
            if found.end() > found.start():
                spans += [(text[end : found.start()], style), (found[0], "match")]
                end = found.end()
        return [*spans, (text[end:], style)]

    # ---- moving, folding

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

    def action_fold(self) -> None:
        """Fold or unfold the record under the cursor, or the one it lies in."""
        if not self.line_count():
            return
        row = self.row_at(self.cursor)
        if not self.store.has_children(row):
            row = self._holder_of(row)
        self._toggle(row, row not in self._folded)

    def action_fold_to(self, direction: int) -> None:
        """h folds, l unfolds."""
        if not self.line_count():
            return
        row = self.row_at(self.cursor)
        if direction < 0 and (row in self._folded or not self.store.has_children(row)):
            row = self._holder_of(row)
        self._toggle(row, direction < 0)

    def _holder_of(self, row: int) -> int:
        depth = self.store.depths[row]
        for above in range(row - 1, -1, -1):
            if self.store.depths[above] < depth:
                return above
        return row

    def _toggle(self, row: int, fold: bool) -> None:
        if fold and self.store.has_children(row):
            self._folded.add(row)
        else:
            self._folded.discard(row)
        self._refold()
        self.lines_changed()
        self.select(self.line_of(row), notify=False)

    def _refold(self) -> None:
        keep = None if self._keep is None else lambda text: bool(self._keep and self._keep.search(text))
        self._rows = self.store.shown(self._folded, keep, self._near)

    # ---- searching

    def set_filter(self, text: str) -> None:
        """``text`` is a regular expression; a leading "+2 " keeps two lines of context; "" shows all. Raises
        CommandError."""
        context = 0
        given = text.strip()
        found = re.match(r"\+(\d+)\s+(.*)", given)
        if found:
            context, given = int(found[1]), found[2]
        keep = compile_pattern(given) if given else None
        at = self.row_at(self.cursor) if self.line_count() else 0
        self._keep, self._near, self.filter_text = keep, context, text.strip() if given else ""
        self._refold()
        self.lines_changed()
        self.select(self.line_of(at), notify=False)

    def search(self, text: str, step: int) -> bool:
        """To the next line that matches; False when none does."""
        self._match = compile_pattern(text) if text else None
        self.refresh()
        match = self._match
        return match is not None and self._go(lambda row: bool(match.search(self.store.raw(row))), step)

    def next_bad(self, step: int) -> bool:
        """To the next warning or error."""
        return self._go(self.store.alarming, step)

    def _go(self, hit: Any, step: int) -> bool:
        size = self.line_count()
        for distance in range(1, size + 1):
            line = (self.cursor + step * distance) % size
            if hit(self.row_at(line)):
                self.select(line)
                return True
        return False

    def toggle_mark(self) -> None:
        if self.line_count():
            row = self.row_at(self.cursor)
            self._marks = [m for m in self._marks if m != row] if row in self._marks else sorted([*self._marks, row])
            self.refresh()

    def to_mark(self) -> bool:
        if not self._marks or not self.line_count():
            return False
        here = self.row_at(self.cursor)
        row = next((mark for mark in self._marks if mark > here), self._marks[0])
        self.select(self.line_of(row))
        return True

    def copied(self) -> str:
        """What `y` copies."""
        return self.store.raw(self.row_at(self.cursor)).strip() if self.line_count() else ""


def compile_pattern(text: str) -> re.Pattern[str]:
    """Smart case: without a capital, case does not matter. Raises CommandError."""
    try:
        return re.compile(text, 0 if text != text.lower() else re.IGNORECASE)
    except re.error as error:
        raise CommandError(
            f"{text!r} is no regular expression: {error}", "escape special characters with a backslash"
        ) from None
