"""A screen of panels: the keys that act on the panel with the focus. UI thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.screen import Screen

from adbg.engine.errors import AdbgError
from adbg.tui.app.keymap import bindings
from adbg.tui.app.lines.actions import Copied, Searched, Walked
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.screens.dialogs import LineScreen


class PanelScreen(Screen[None]):
    """Subclasses say which panel answers for one that cannot (``principal``)."""

    BINDINGS = bindings("screen")
    SEARCH_HINT = "n N next, P previous match in the panel, until Escape; ↑ earlier ones"
    FILTER_HINT = "a regular expression; +2 PATTERN keeps 2 lines of context; empty: all; ↑ earlier ones"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._searched = ""
        self.searching = False  # `n` is the next match, as in less and vim, until another command or Escape
        self.past: dict[str, list[str]] = {}  # answers to ``ask_line`` by question

    @property
    def principal(self) -> Walked:
        """The panel that is searched while one without a search has the focus."""
        raise NotImplementedError

    @property
    def _walked(self) -> Walked:
        return self.focused if isinstance(self.focused, Walked) else self.principal

    def say_error(self, error: AdbgError) -> None:
        """What went wrong."""
        self.notify(error.message, severity="error", timeout=4, markup=False)

    def ask_line(self, question: str, text: str, hint: str, then: Callable[[str], None]) -> None:
        """One line from the user; errors of ``then`` are shown."""

        def answered(line: str | None) -> None:
            if line is None:
                return
            try:
                then(line.strip())
            except AdbgError as error:
                self.say_error(error)

        self.app.push_screen(LineScreen(question, text, hint, self.past.setdefault(question, [])), answered)

    def action_search(self) -> None:
        def chosen(text: str) -> None:
            if text:
                self._searched = text
                self.action_search_next(1)

        self.ask_line("/", "", self.SEARCH_HINT, chosen)

    def action_search_next(self, step: int) -> None:
        if not self._searched:
            self.action_search()
            return
        self.searching = True
        panel = self.focused if isinstance(self.focused, Searched) else self.principal
        try:
            found = panel.search(self._searched, step)
        except AdbgError as error:
            self.say_error(error)
            return
        if found is False:
            self.not_found(self._searched)

    def next_match(self) -> bool:
        """`n` behind a search; False when there was none."""
        if self.searching:
            self.action_search_next(1)
            self.notify("n is the next match; Escape ends the search", timeout=2)
        return self.searching

    def not_found(self, text: str) -> None:
        self.notify(f"{text!r} not found", severity="warning", timeout=2, markup=False)

    def on_vlog_panel_search_ended(self, event: VlogPanel.SearchEnded) -> None:
        """The rest of a long log was looked through."""
        if not event.found:
            self.not_found(event.text)

    def ask_filter(self, panel: VlogPanel) -> None:
        """What to keep of a log."""
        self.ask_line("&", "", self.FILTER_HINT, panel.set_filter)

    def action_next_bad(self, step: int) -> None:
        if not self._walked.next_bad(step):
            self.notify("none found so far", timeout=2)

    def action_mark(self) -> None:
        self._walked.toggle_mark()

    def action_to_mark(self) -> None:
        if not self._walked.to_mark():
            self.app.bell()

    def action_yank(self) -> None:
        text = self.focused.copied() if isinstance(self.focused, Copied) else ""
        if text:
            self.app.copy_to_clipboard(text)
            self.notify(f"copied {text.splitlines()[0][:40]}", timeout=2, markup=False)
        else:
            self.app.bell()
