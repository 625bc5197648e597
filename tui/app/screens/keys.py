"""All keys of a screen that has its own, however narrow the terminal. UI thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.text.cells import Spans, fit

Keys = Sequence[tuple[str, str]]


class KeysText(LinePanel):
    """A line each."""

    show_cursor = False

    def __init__(self, keys: Keys, **options: Any) -> None:
        super().__init__(**options)
        self._keys = keys
        self._keys_width = max(len(key) for key, _ in keys)

    def line_count(self) -> int:
        return len(self._keys)

    def line(self, row: int, width: int) -> Spans:
        key, text = self._keys[row]
        return fit([(f"  {key:<{self._keys_width}}  ", "key"), (text, "")], width)


class KeysScreen(ModalScreen[None]):
    """Any of escape, q, ? and F1 leaves it."""

    BINDINGS = [Binding("escape,q,question_mark,f1", "leave", "Leave", show=False)]

    def __init__(self, title: str, keys: Keys) -> None:
        super().__init__()
        self._heading = title
        self._keys = keys

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = Content(self._heading)
            box.border_subtitle = "esc back"
            yield KeysText(self._keys)

    def action_leave(self) -> None:
        self.dismiss(None)
