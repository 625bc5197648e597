"""All ranks of the job at a glance; Enter goes to one. UI thread, but for the question to the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from adbg.tui.app import theme
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.panels.ranks import RanksPanel
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.job.rows import rank_rows
from adbg.tui.text.ranks import summary, timeouts_text

PERIOD = 0.5  # seconds between two looks at what is known; the ranks are asked once a second


class RanksScreen(ModalScreen[None]):
    """``run_line`` runs a command; Escape, J and q leave."""

    BINDINGS = [
        Binding("escape,J,q,f9", "leave", "Back", show=False),
        Binding("c", "run('continue')", "Continue", show=False),
        Binding("s", "run('rank all step')", "Step all", show=False),
        Binding("i", "run('pause')", "Pause", show=False),
        Binding("y", "yank", "Copy", show=False),
    ]

    def __init__(self, debugger: Debugger, run_line: Callable[[str], None]) -> None:
        super().__init__()
        self._debugger = debugger
        self._run_line = run_line
        self._watching = contextlib.ExitStack()
        self._panel = RanksPanel(id="ranks")
        self._head = Static("", id="ranks-head")

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame full") as box:
            box.border_title = "Ranks"
            box.border_subtitle = Content("enter go to it · s step all · c continue · i pause · y copy · esc back")
            yield self._head
            yield self._panel

    def on_mount(self) -> None:
        self._watching.enter_context(self._debugger.ranks.watching())
        self.set_interval(PERIOD, self.renew)
        self.set_focus(self._panel)
        self.renew()

    def on_unmount(self) -> None:
        self._watching.close()

    def on_resize(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Draw what is known now."""
        debugger, panel = self._debugger, self._panel
        rows = rank_rows(debugger.ranks, debugger.stop_all, debugger.run.current)
        panel.show(rows)
        width = panel.size.width or 78
        lines = [[(summary(rows), "bold")], *([(text, "dim")] for text in timeouts_text(row.state for row in rows))]
        self._head.update(theme.styled(*lines, panel.heading(width)))

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        if event.row < len(self._panel.rows):
            self.dismiss(None)
            self._run_line(f"rank {self._panel.rows[event.row].rank}")

    def action_run(self, line: str) -> None:
        self._run_line(line)

    def action_yank(self) -> None:
        self.app.copy_to_clipboard(self._panel.copied())

    def action_leave(self) -> None:
        self.dismiss(None)
