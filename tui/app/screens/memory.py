"""Memory of the program: its figures, their course over iterations, and what the graph retains. UI thread; the program
is asked on a worker, once a second while it runs and once at each stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import wrap
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from adbg.engine.protocol.messages import MemoryBody
from adbg.engine.types import SourceLine
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.messages import Read
from adbg.tui.text.cells import Spans, elide
from adbg.tui.text.memory import MemoryLine, screen_lines

EVERY = 1.0  # seconds between two looks at a program that runs
Answer = tuple[object, MemoryBody]  # where it was asked: the stop, None while the program ran
Question = Callable[["bool | None"], Callable[[], Answer]]
Ask = Callable[[str, Any, Callable[[], Answer], Callable[[Read], None]], None]


_FOLDS_FROM, _WIDE = 20, 110  # cells


def folded(lines: list[MemoryLine], width: int, room: int) -> list[MemoryLine]:
    """What is too wide goes on below itself, as long as there are rows to spare; then it is cut."""
    found: list[MemoryLine] = []
    for line in lines:
        indent = " " * (len(line.text) - len(line.text.lstrip()))
        parts = wrap(line.text, width, subsequent_indent=indent + "  ") if len(line.text) > width else []
        if 1 < len(parts) <= room + 1:
            room -= len(parts) - 1
            found += [replace(line, text=part) for part in parts]
        else:
            found.append(line)
    return found


class MemoryText(LinePanel):
    """The lines of the view."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.body: MemoryBody | None = None
        self.waiting = "asking the program …"
        self._lines: list[MemoryLine] = []
        self._width = 0

    def show(self, body: MemoryBody | None) -> None:
        """New figures; the cursor stays on its row. At first it goes to the first one that has a source line."""
        first = self.body is None
        self.body = body
        self._make()
        places = [row for row, line in enumerate(self._lines) if line.place is not None]
        if first and places:
            self.select(places[0])

    def _make(self) -> None:
        self._width = self.size.width
        lines = screen_lines(self.body, self._width) if self.body is not None else []
        room = self.size.height - len(lines)  # rows that would stay empty
        self._lines = folded(lines, self._width, room) if self._width > _FOLDS_FROM else lines
        self.lines_changed()

    def on_resize(self, event: Any) -> None:
        """The columns follow the width."""
        if self.size.width != self._width:
            self._make()
        super().on_resize(event)

    def line_count(self) -> int:
        return len(self._lines)

    def line(self, row: int, width: int) -> Spans:
        line = self._lines[row]
        return [(elide(line.text, width), line.style)]

    def empty_text(self) -> str:
        return self.waiting

    def place(self) -> SourceLine | None:
        """The source line under the cursor."""
        return self._lines[self.cursor].place if self._lines else None

    def copied(self) -> str:
        return self._lines[self.cursor].text.strip() if self._lines else ""


class MemoryScreen(ModalScreen["SourceLine | None"]):
    """Returns the source line that was chosen with enter. ``ask`` as ``Lookups.ask``; ``question`` makes what asks the
    program, and may switch its watching of iterations; ``here`` tells the present stop."""

    BINDINGS = [
        Binding("escape,q,f6", "leave", "Back", show=False),
        Binding("r", "again", "Ask again", show=False),
        Binding("w", "watch", "Watch iterations", show=False),
    ]

    def __init__(self, ask: Ask, question: Question, here: Callable[[], object]) -> None:
        super().__init__()
        self._ask = ask
        self._question = question
        self._here = here
        self._asked_at: object = None
        self._asking = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Memory"
            yield MemoryText(id="memory-text")

    def on_mount(self) -> None:
        self.set_focus(self._text)
        self.action_again()
        self.set_interval(EVERY, self._look)

    @property
    def _text(self) -> MemoryText:
        return self.query_one(MemoryText)

    def _look(self) -> None:
        """A program that stands still where it was asked has nothing new to say."""
        here = self._here()
        if not self._asking and (here is None or here is not self._asked_at):
            self.action_again()

    def action_again(self, watch: bool | None = None) -> None:
        """Ask now."""
        self._asking = True
        self._ask("memory", None, self._question(watch), self._answered)

    def action_watch(self) -> None:
        """Sample the end of each iteration, or no longer."""
        body = self._text.body
        if body is not None:
            self.action_again(not body.course.on)

    def _answered(self, read: Read) -> None:
        if not self.is_mounted:
            return
        self._asking = False
        if read.error is not None:
            self._text.waiting = str(read.error)
            self._text.show(None)
        else:
            self._asked_at, body = read.result
            self._text.show(body)
        on = self._text.body is not None and self._text.body.course.on
        watch = "w stop watching iterations" if on else "w watch iterations"
        keys = f"r again · {watch} · ⏎ source · esc back"
        if self.app.size.width >= _WIDE:
            keys += " · in the console: why alive EXPRESSION"
        self.query_one(".frame").border_subtitle = Content(keys)

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        place = self._text.place()
        if place is None:
            self.app.bell()
        else:
            self.dismiss(place)

    def action_yank(self) -> None:
        self.app.copy_to_clipboard(self._text.copied())

    def action_leave(self) -> None:
        self.dismiss(None)
