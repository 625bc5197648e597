"""A sheet as a panel of lines, and a line of words that is clicked. UI thread."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.message import Message
from textual.widgets import Static

from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.profile.sheets import Sheet
from adbg.tui.text.cells import Spans


class SheetPanel(LinePanel):
    """The rows of a sheet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sheet: Sheet | None = None
        self.waiting = "reading the profile …"

    def show(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.waiting = "there is nothing in it"
        self.lines_changed()
        self.select(0)

    def line_count(self) -> int:
        return len(self.sheet.items) if self.sheet is not None else 0

    def line(self, row: int, width: int) -> Spans:
        assert self.sheet is not None
        return self.sheet.line(row, width)

    def empty_text(self) -> str:
        return self.waiting


class Bar(Static):
    """A line of words; a click tells the cell."""

    class Clicked(Message):
        def __init__(self, bar: Bar, x: int) -> None:
            super().__init__()
            self.bar, self.x = bar, x

        @property
        def control(self) -> Bar:
            return self.bar

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Clicked(self, event.x))
