"""``adbg log FILE…`` on a terminal: the log panel on the whole screen, a tab for each file. UI thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import ContentSwitcher, Static

from adbg.tui.app import theme
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.log.folds import OPEN
from adbg.tui.app.log.vlog_panel import VlogPanel
from adbg.tui.app.screens.panel_screen import PanelScreen
from adbg.tui.app.typeahead import TypeAhead

POLLS = 30  # a second
HINTS = (
    "? Keys  q Quit  / Find  N P Next, previous  & Filter  e E Warning, error  space Fold  ⏎ Whole text  < > Fold all"
    "  F Follow  G End  m ' Mark  T Columns  y Copy  [ ] File"
)
FILTER_HINT = "PATTERN, level:4, level:W, module:NAME, thread:NUMBER, +2 for context; empty: all; ↑ earlier ones"


class LogScreen(PanelScreen):
    """A tab for each file of ``paths``."""

    SEARCH_HINT = "a regular expression; N next, P previous match; ↑ earlier ones"
    FILTER_HINT = FILTER_HINT

    def __init__(self, paths: Sequence[str], following: bool) -> None:
        super().__init__(id="_default")
        self._paths = paths
        self.number = 0  # of the file shown
        self.panels: list[VlogPanel] = []
        for number, path in enumerate(paths):
            panel = VlogPanel(id=f"log{number}")
            panel.following = following
            panel.waiting = f"{path} is empty so far"
            self.panels.append(panel)

    def files(self) -> ComposeResult:
        """The widgets."""
        with ContentSwitcher(id="files", initial="file0"):
            for number, panel in enumerate(self.panels):
                with Vertical(id=f"file{number}", classes="frame"):
                    yield panel
        yield Static(Content(HINTS), id="hints")

    @property
    def principal(self) -> VlogPanel:
        """The panel of the file shown."""
        return self.panels[self.number]

    def show(self, number: int) -> None:
        """File ``number``."""
        self.number = number
        self.query_one("#files", ContentSwitcher).current = f"file{number}"
        self.principal.focus()
        names = [os.path.basename(path) for path in self._paths]
        title = self._paths[0] if len(names) == 1 else " │ ".join(
            f"[{name}]" if at == number else name for at, name in enumerate(names)
        )  # fmt: skip
        self.query_one(f"#file{number}").border_title = Content(title)

    def action_cycle(self, step: int) -> None:
        """Another file."""
        self.show((self.number + step) % len(self.panels))

    def action_filter(self) -> None:
        self.ask_filter(self.principal)


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
        self.main = LogScreen(self._paths, follow)
        self.main.past["&"] = [filter_text] if filter_text else []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.THEME.variables

    def get_default_screen(self) -> LogScreen:
        return self.main

    def compose(self) -> ComposeResult:
        yield from self.main.files()

    def on_mount(self) -> None:
        for path, panel in zip(self._paths, self.main.panels):
            panel.open_file(path)
            if self._fold_depth is not None:
                panel.fold_all(min(self._fold_depth, OPEN))
            if self._filter_text:
                panel.set_filter(self._filter_text)
        self.main.show(0)
        self._tick()
        self.set_interval(1 / POLLS, self._tick)

    def on_unmount(self) -> None:
        for panel in self.main.panels:
            panel.store.close()

    def _tick(self) -> None:
        """The file shown first: what it leaves of the time is for the others."""
        self.shown.poll()
        for panel in self.main.panels:
            if panel is not self.shown:
                panel.poll()

    @property
    def shown(self) -> VlogPanel:
        """The panel of the file shown."""
        return self.main.principal

    def on_line_panel_opened(self, event: LinePanel.Opened) -> None:
        event.stop()
        if not self.shown.open_record():
            self.bell()

    def action_keys(self) -> None:
        """All keys, however narrow the terminal, or the first line of them again."""
        self.main.query_one("#hints", Static).toggle_class("-all")
