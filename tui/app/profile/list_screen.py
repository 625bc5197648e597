"""The reports of a run, to choose from, where no program runs. UI thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.profile.artifacts import Saved
from adbg.tui.text.cells import Spans, fit


class SavedList(LinePanel):
    def __init__(self, rows: Sequence[Saved]) -> None:
        super().__init__()
        self.rows = rows

    def line_count(self) -> int:
        return len(self.rows)

    def line(self, row: int, width: int) -> Spans:
        each = self.rows[row]
        return fit([(f"  {each.name:<24}", ""), (f"  {each.what}", "dim")], width)


class ListScreen(ModalScreen[None]):
    """``chosen`` is called with the path of one; escape and q leave."""

    BINDINGS = [Binding("escape,q", "leave", "Leave", show=False)]

    def __init__(self, rows: Sequence[Saved], title: str, chosen: Callable[[str], None]) -> None:
        super().__init__()
        self._rows, self._title, self._chosen = rows, title, chosen

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = Content(f"Profiles of {self._title}")
            box.border_subtitle = "⏎ open · q leave"
            yield SavedList(self._rows)

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        self._chosen(self._rows[event.row].path)

    def action_leave(self) -> None:
        self.dismiss(None)
