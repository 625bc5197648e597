"""Panel 3: the source file with the line behind the selection. UI thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.message import Message

from adbg.engine.types import SourceLine
from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.panels import source_file as sourcefile
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans, fit, width_of

SIDEWAYS = 8  # characters a key press


class CodePanel(LinePanel):
    """A file with the current line marked. The cursor walks the file; `b` breaks on the line under it.

    Attributes:
        column: first character of the lines that is shown; after every jump to another line 0, or as much of its
            indentation as leaves room for the rest.
    """

    BINDINGS = bindings("code")

    @dataclass(eq=False)
    class Wanted(Message):
        """``path`` is to be highlighted in a worker."""

        path: str

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.path = ""
        self.current = 0  # line from 1, 0 for none
        self.breakpoint_lines: dict[tuple[str, int], bool] = {}  # (basename or path, line) -> enabled
        self.column = 0
        self.waiting = "the forward line of the selected node is shown here"
        self._lines: list[Spans] = []

    def show(self, place: SourceLine | None, note: str = "") -> None:
        """Go to ``place``; None empties the panel and says ``note``."""
        if place is None:
            self.path, self.current, self._lines = "", 0, []
            self.waiting = note or "no source line is known for this node"
            self.lines_changed()
            return
        known = sourcefile.cached(place.file)
        if place.file != self.path or (known is not None and known is not self._lines):
            self.path = place.file
            self._lines = known if known is not None else sourcefile.plain(place.file)
            self.waiting = note or f"{place.file} cannot be read here (line {place.line})"
            if known is None and self._lines:
                self.post_message(self.Wanted(place.file))
        self.current, self.column = place.line, self._first_column(place.line)
        self.lines_changed()
        self.select(place.line - 1, notify=False)
        self._centre(place.line - 1)

    def highlighted(self, path: str) -> None:
        """The worker is done with ``path``."""
        if path == self.path:
            self._lines = sourcefile.cached(path) or self._lines
            self.lines_changed()  # the file may have become shorter

    def _first_column(self, line: int) -> int:
        """As much of the indentation of ``line`` is left out as has room for what it says; 0 where all of it fits."""
        text = figures.plain(self._lines[line - 1]) if 0 < line <= len(self._lines) else ""
        over = width_of([(text, "")]) - (self.size.width - self._gutter) if self.size.width else 0
        return max(min(over, len(text) - len(text.lstrip())), 0)

    @property
    def _gutter(self) -> int:
        return max(len(str(len(self._lines))), 3) + 3

    def _centre(self, row: int) -> None:
        height = self.size.height
        if height > 0:
            self.scroll_to(y=max(row - height * 2 // 5, 0), animate=False, force=True)

    def on_resize(self, event: Any) -> None:
        super().on_resize(event)
        if self.current and self.cursor == self.current - 1:
            self.call_after_refresh(lambda: self._centre(self.cursor))  # where it is then: it may move before

    def line_count(self) -> int:
        return len(self._lines)

    def empty_text(self) -> str:
        return self.waiting

    def line(self, row: int, width: int) -> Spans:
        here = row + 1 == self.current
        digits = max(len(str(len(self._lines))), 3)
        name = self.path.rsplit("/", 1)[-1]
        enabled = self.breakpoint_lines.get((name, row + 1), self.breakpoint_lines.get((self.path, row + 1)))
        spans: Spans = [
            ("▶" if here else " ", "here"),
            ("◆" if enabled is not None else " ", "breakpoint" if enabled else "breakpointoff"),
            (f"{row + 1:>{digits}} ", "here" if here else "faint"),
        ]
        return fit([*spans, *figures.from_column(self._lines[row], self.column)], width)

    def action_sideways(self, step: int) -> None:
        """Show what lies further right (1) or left (-1), as far as the longest line in sight has more."""
        top = self.scroll_offset.y
        seen = self._lines[top : top + max(self.size.height, 1)]
        longest = max((width_of(spans) for spans in seen), default=0)
        last = max(longest - (self.size.width - self._gutter), 0)
        column = min(max(self.column + step * SIDEWAYS, 0), max(last, self.column))
        if column == self.column:
            self.app.bell()
        self.column = column
        self.refresh()

    def search(self, text: str, step: int) -> bool:
        """To the next line with ``text``."""
        wanted = text.lower()
        size = len(self._lines)
        for distance in range(1, size + 1):
            row = (self.cursor + step * distance) % size
            if wanted in figures.plain(self._lines[row]).lower():
                self.select(row)
                return True
        return False

    def place(self) -> SourceLine | None:
        """The line under the cursor."""
        return SourceLine(self.path, min(self.cursor, len(self._lines) - 1) + 1, "") if self._lines else None

    def breakpoint_spec(self) -> str:
        place = self.place()
        return f"{place.file.rsplit('/', 1)[-1]}:{place.line}" if place is not None else ""

    def copied(self) -> str:
        return figures.plain(self._lines[min(self.cursor, len(self._lines) - 1)]).strip() if self._lines else ""
