"""``adbg log FILE…`` on a terminal: the log panel on the whole screen, a tab for each file. UI thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import ContentSwitcher, Static

from adbg.engine.errors import AdbgError
from adbg.tui.app import theme
from adbg.tui.app.keymap import BY_ID
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.log.folds import OPEN
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.screens.dialogs import LineScreen
from adbg.tui.app.typeahead import TypeAhead

POLLS = 30  # a second
_IDS = (
    "search", "searchnext", "searchprevious", "filter", "badnext", "badprevious", "mark", "tomark", "yank", "tabnext",
    "tabprevious",
)  # fmt: skip
HINTS = (
    "? Keys  q Quit  / Find  N P Next, previous  & Filter  e E Warning, error  space Fold  ⏎ Whole text  < > Fold all"
    "  F Follow  G End  m ' Mark  T Columns  y Copy  [ ] File"
)
FILTER_HINT = "PATTERN, level:4, level:W, module:NAME, thread:NUMBER, +2 for context; empty: all; ↑ earlier ones"


class LogApp(TypeAhead[None]):
    """``paths`` are files that exist; ``filter_text``, ``depth`` and ``follow`` are what the command line asked for."""

    CSS = """
    Screen { background: $background; color: $foreground; }
    .frame { border: round $border-idle; border-title-color: $text-dim; border-subtitle-color: $text-dim; height: 1fr; }
    .frame:focus-within { border: round $primary; border-title-color: $foreground; }
    .frame VlogPanel { height: 1fr; width: 100%; background: $background; color: $foreground; }
    #files { height: 1fr; }
    #hints { height: 1; width: 100%; background: $panel; color: $text-dim; text-wrap: nowrap; text-overflow: ellipsis; }
    #hints.-all { height: auto; text-wrap: wrap; color: $foreground; }
    Input, Input.-textual-compact { background: $background; color: $foreground; border: none; height: 1; padding: 0; }
    ModalScreen { background: $background 60%; }
    LineScreen { align: center bottom; }
    #line-box { height: auto; background: $background; }
    #line-hint { color: $text-dim; }
    #line-row { grid-size: 2; grid-columns: auto 1fr; height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(BY_ID[i].keys, BY_ID[i].action, BY_ID[i].text, id=i, show=False) for i in _IDS),
        Binding("question_mark,f1", "keys", "all keys", show=False),
        Binding("q,ctrl+c,ctrl+q", "quit", "quit", show=False, priority=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, paths: Sequence[str], filter_text: str = "", depth: int | None = None, follow: bool = False
    ) -> None:
        super().__init__()
        self.register_theme(theme.THEME)
        self.theme = theme.THEME.name
        self._paths = list(paths)
        self._filter_text = filter_text
        self._fold_depth = depth
        self._follow = follow
        self._searched = ""
        self._past: dict[str, list[str]] = {"/": [], "&": [filter_text] if filter_text else []}
        self.number = 0  # of the file shown
        self.panels: list[VlogPanel] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.THEME.variables

    def compose(self) -> ComposeResult:
        with ContentSwitcher(id="files", initial="file0"):
            for number, path in enumerate(self._paths):
                with Vertical(id=f"file{number}", classes="frame"):
                    panel = VlogPanel(id=f"log{number}")
                    panel.following = self._follow
                    panel.waiting = f"{path} is empty so far"
                    self.panels.append(panel)
                    yield panel
        yield Static(Content(HINTS), id="hints")

    def on_mount(self) -> None:
        for path, panel in zip(self._paths, self.panels):
            panel.open_file(path)
            if self._fold_depth is not None:
                panel.fold_all(min(self._fold_depth, OPEN))
            if self._filter_text:
                panel.set_filter(self._filter_text)
        self._show(0)
        self._tick()
        self.set_interval(1 / POLLS, self._tick)

    def on_unmount(self) -> None:
        for panel in self.panels:
            panel.store.close()

    def _tick(self) -> None:
        """The file shown first: what it leaves of the time is for the others."""
        self.shown.poll()
        others = [panel for panel in self.panels if panel is not self.shown]
        for panel in others:
            panel.poll()

    @property
    def shown(self) -> VlogPanel:
        """The panel of the file shown."""
        return self.panels[self.number]

    def _show(self, number: int) -> None:
        self.number = number
        self.query_one("#files", ContentSwitcher).current = f"file{number}"
        self.shown.focus()
        names = [os.path.basename(path) for path in self._paths]
        title = self._paths[0] if len(names) == 1 else " │ ".join(
            f"[{name}]" if at == number else name for at, name in enumerate(names)
        )  # fmt: skip
        self.query_one(f"#file{number}").border_title = Content(title)

    # ---- keys

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        if not self.shown.open_record():
            self.bell()

    def action_keys(self) -> None:
        """All keys, however narrow the terminal, or the first line of them again."""
        self.query_one("#hints", Static).toggle_class("-all")

    def action_cycle(self, step: int) -> None:
        """Another file."""
        self._show((self.number + step) % len(self._paths))

    def _ask(self, question: str, hint: str, then: Callable[[str], None]) -> None:
        def answered(line: str | None) -> None:
            if line is None:
                return
            try:
                then(line.strip())
            except AdbgError as error:
                self.notify(error.message, severity="error", timeout=4, markup=False)

        self.push_screen(LineScreen(question, "", hint, self._past[question]), answered)

    def action_search(self) -> None:
        def chosen(text: str) -> None:
            self._searched = text
            if text:
                self.action_search_next(1)

        self._ask("/", "a regular expression; N next, P previous match; ↑ earlier ones", chosen)

    def action_search_next(self, step: int) -> None:
        if not self._searched:
            self.action_search()
            return
        try:
            found = self.shown.search(self._searched, step)
        except AdbgError as error:
            self.notify(error.message, severity="error", timeout=4, markup=False)
            return
        if found is False:
            self._not_there(self._searched)

    def _not_there(self, text: str) -> None:
        self.notify(f"{text!r} is not there", severity="warning", timeout=2, markup=False)

    def on_vlog_panel_search_ended(self, event: VlogPanel.SearchEnded) -> None:
        """The rest of a long log was looked through."""
        if not event.found:
            self._not_there(event.text)

    def action_filter(self) -> None:
        self._ask("&", FILTER_HINT, self.shown.set_filter)

    def action_next_bad(self, step: int) -> None:
        if not self.shown.next_bad(step):
            self.notify("no warning or error so far", timeout=2)

    def action_mark(self) -> None:
        self.shown.toggle_mark()

    def action_to_mark(self) -> None:
        if not self.shown.to_mark():
            self.bell()

    def action_yank(self) -> None:
        text = self.shown.copied()
        if text:
            self.copy_to_clipboard(text)
            self.notify(f"copied {text.splitlines()[0][:40]}", timeout=2, markup=False)
