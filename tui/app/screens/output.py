"""The program's own output, as its terminal would show it, and a line that types into the program. UI thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.cells import chop_cells
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Grid, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.lines.screen_text import ScreenText
from adbg.tui.text import cells as figures
from adbg.tui.text.cells import Spans


class OutputText(LinePanel):
    """The lines, broken where the terminal would break them; follows the end until scrolled up."""

    show_cursor = False

    def __init__(self, screen_text: ScreenText, **options: Any) -> None:
        super().__init__(**options)
        self._text = screen_text
        self._pieces: list[str] = []
        self._starts: list[int] = []  # of each line, in ``_pieces``
        self._first = 0  # number of the first line in them, dropped ones counted
        self._width = 0
        self._at_end = True

    def line_count(self) -> int:
        return len(self._pieces) - (not self._text.lines[-1] and bool(self._pieces))

    def line(self, row: int, width: int) -> Spans:
        return [(self._pieces[row], "")]

    def empty_text(self) -> str:
        return "the program has written nothing yet"

    def _break(self) -> None:
        """Break the lines that changed; all of them where the width changed or lines were dropped."""
        text, width = self._text, max(self.size.width, 1)
        if width != self._width or text.dropped != self._first:
            self._width, self._first, self._pieces, self._starts = width, text.dropped, [], []
        known = min(max(text.touched - text.dropped, 0), len(self._starts))
        if known < len(self._starts):
            del self._pieces[self._starts[known] :], self._starts[known:]
        for line in text.lines[known:]:
            self._starts.append(len(self._pieces))
            self._pieces += chop_cells(line, width) or [""]
        text.touched = text.finished

    def grown(self) -> None:
        """More was written."""
        self._break()
        self.lines_changed()
        if self._at_end:
            self.call_after_refresh(self._to_end)

    def _to_end(self) -> None:
        self.scroll_to(y=max(self.line_count() - self.size.height, 0), animate=False, force=True)

    def on_resize(self, event: Any) -> None:
        self.grown()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._at_end = new_value >= self.line_count() - self.size.height


class OutputScreen(ModalScreen[None]):
    """``type_in`` gets what the user enters, as bytes with a newline; a line of only "^D" is the end of input.

    Escape and o (outside the line) leave; i and enter go into the line.
    """

    BINDINGS = [
        Binding("escape", "leave", "Back", show=False),
        Binding("o,q", "leave", "Back", show=False),
        Binding("i,enter", "type", "Type", show=False),
        Binding("ctrl+d", "end_of_input", "End of input", show=False, priority=True),
    ]

    def __init__(self, screen_text: ScreenText, type_in: Callable[[bytes], None], alive: bool) -> None:
        super().__init__()
        self._text = screen_text
        self._type_in = type_in
        self._alive = alive

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Program output"
            yield OutputText(self._text, id="output-text")
            if self._alive:
                with Grid(id="stdin-row"):
                    yield Label("stdin ▸ ")
                    yield Input("", id="stdin", compact=True, placeholder="i: a line for the program's input")

    def on_mount(self) -> None:
        self.set_focus(self.query_one("#output-text"))
        for line in self.query(Input):
            line.cursor_blink = False
        self.grown()

    def grown(self) -> None:
        """More was written."""
        self.query_one(OutputText).grown()
        dropped = f"{figures.count(self._text.dropped)} older lines dropped · " if self._text.dropped else ""
        keys = "i type · ctrl+d end of input · " if self._alive else ""
        words = f"{dropped}{figures.count(self._text.finished)} lines · {keys}esc back"
        self.query_one(".frame").border_subtitle = Content(words)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._type_in(event.value.encode() + b"\n")
        event.input.value = ""

    def action_end_of_input(self) -> None:
        if self._alive:
            self._type_in(b"\x04")

    def action_type(self) -> None:
        for line in self.query("#stdin"):
            self.set_focus(line)

    def action_leave(self) -> None:
        focused = self.focused
        if isinstance(focused, Input):
            self.set_focus(self.query_one("#output-text"))
        else:
            self.dismiss(None)
