"""Output of the console: styled text, wrapped to the width, with the program's own output in between. UI thread."""

from __future__ import annotations

import bisect
import re
from collections import deque
from typing import Any

from rich.cells import cell_len
from textual import events

from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.lines.wrapping import wrap
from adbg.tui.text.cells import Spans, elide, matched

_MOST = 5000  # entries
_BURST = 200  # lines of program output taken in per tick; of more the last ones


class Transcript(LinePanel):
    """Scrolls with its end unless the user scrolled up; then its frame says how much is below."""

    show_cursor = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._entries: deque[tuple[str, str]] = deque(maxlen=_MOST)
        self._lines: list[tuple[str, str, int]] = []  # with the number of the entry
        self._written = 0  # entries so far
        self._found = -1  # number of the entry that was found last
        self._match: re.Pattern[str] | None = None
        self._width = 0
        self._low = False
        self.running_line = ""  # unfinished last line of the program
        self._at_end = True
        self._hints: dict[str, str] = {}

    def hint(self, name: str, text: str) -> None:
        """Have the frame say ``text`` in place of what it said under ``name``; "": nothing more."""
        if text != self._hints.get(name, ""):
            self._hints[name] = text
            self._tell()

    def write(self, text: str, style: str = "") -> None:
        """Append text of one or more lines."""
        self._at_end = self._at_end or self._is_at_end()
        for line in text.split("\n"):
            entry = (line.rstrip().expandtabs(4), style)
            self._entries.append(entry)
            self._lines += self._wrapped(*entry, self._written)
            self._written += 1
        del self._lines[: max(len(self._lines) - 3 * _MOST, 0)]
        self._settle()

    def write_from_its_start(self, text: str) -> None:
        """The same; where there is more than fits in, its first line is shown, and not its last."""
        row = len(self._lines)
        self.write(text)

        def show() -> None:
            if len(self._lines) - row > self.size.height:
                self._at_end = False
                self.scroll_to(y=row, animate=False, force=True)

        self.call_after_refresh(show)

    def write_program(self, lines: list[str], running: str) -> None:
        """Finished lines of the program, and the one it is at."""
        if len(lines) > _BURST:
            self.write(f"│ … {len(lines) - _BURST:,} more lines: o shows all", "program")
            lines = lines[-_BURST:]
        if lines:
            self.write("\n".join("│ " + line for line in lines), "program")
        if running != self.running_line:
            self.running_line = running
            self._settle()

    def clear(self) -> None:
        self._entries.clear()
        self._lines = []
        self.lines_changed()

    def to_end(self) -> None:
        """Follow the end again: what was asked for comes there."""
        self._found = -1
        self._at_end = True
        self._settle()

    def search(self, text: str, step: int) -> bool:
        """To the next entry that contains ``text`` (a regular expression, where it is one), from the one found last or
        the end, around. Smart case."""
        flags = re.IGNORECASE if text == text.lower() else 0
        try:
            self._match = re.compile(text, flags)
        except re.error:
            self._match = re.compile(re.escape(text), flags)
        first, count = self._written - len(self._entries), len(self._entries)
        start = self._found if first <= self._found < self._written else (self._written if step < 0 else first - 1)
        for distance in range(1, count + 1):
            number = first + (start + step * distance - first) % count
            if self._match.search(self._entries[number - first][0]):
                self._found = number
                row = bisect.bisect_left(self._lines, number, key=lambda line: line[2])
                self._at_end = False
                self.refresh()
                self.scroll_to(y=max(row - self.size.height // 2, 0), animate=False, force=True)
                return True
        return False

    def text(self) -> str:
        """All of it, unwrapped."""
        return "\n".join(text for text, _ in self._entries)

    def _wrapped(self, text: str, style: str, number: int) -> list[tuple[str, str, int]]:
        if self._width <= 0 or cell_len(text) <= self._width:
            return [(text, style, number)]
        if self.size.height == 1:  # one line of the narrow layout: the beginning says more than the end
            return [(elide(text, self._width), style, number)]
        return [(piece, style, number) for piece in wrap(text, self._width)]

    def line_count(self) -> int:
        return len(self._lines) + bool(self.running_line)

    def line(self, row: int, width: int) -> Spans:
        if row >= len(self._lines):
            return [("│ " + self.running_line[: max(width - 2, 0)], "program")]
        text, style, number = self._lines[row]
        return matched(text, style, self._match) if number == self._found else [(text, style)]

    def _is_at_end(self) -> bool:
        return self.scroll_offset.y >= self.line_count() - self.size.height

    def _settle(self) -> None:
        self.lines_changed()
        if self._at_end:
            self.call_after_refresh(self._to_end)

    def _to_end(self) -> None:
        self.scroll_to(y=max(self.line_count() - self.size.height, 0), animate=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value:
            self._at_end = False
        if self._is_at_end():
            self._at_end = True
        self._tell()

    def _tell(self) -> None:
        """In the frame: what is below, and the hints."""
        below = max(self.line_count() - int(self.scroll_y) - self.size.height, 0)
        more = f"{below} line{'s' * (below != 1)} below · page down" if below and not self._at_end else ""
        self.tell_frame(" · ".join(filter(None, (more, *self._hints.values()))))

    def on_resize(self, event: events.Resize) -> None:
        if (self.size.width, self.size.height == 1) != (self._width, self._low):
            self._width, self._low = self.size.width, self.size.height == 1
            first = self._written - len(self._entries)
            numbered = enumerate(self._entries, first)
            self._lines = [piece for number, entry in numbered for piece in self._wrapped(*entry, number)]
        self._at_end = True
        self._settle()
