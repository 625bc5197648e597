"""``adbg profile FILE`` on a terminal: the report on the whole screen, without a program. UI thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from adbg.engine.types import SourceLine
from adbg.tui.app import theme
from adbg.tui.app.lines.painting import Painted
from adbg.tui.app.messages import Read
from adbg.tui.app.profile.artifacts import Saved
from adbg.tui.app.profile.contents import Contents
from adbg.tui.app.profile.list_screen import ListScreen
from adbg.tui.app.profile.report_screen import ReportScreen
from adbg.tui.app.profile.source_screen import SourceScreen
from adbg.tui.app.typeahead import TypeAhead


class ReportApp(TypeAhead[int], Painted):
    """``path`` is a file or an artifact's folder, compared with ``before`` where that is given. ``several``: reports to
    choose from, in place of one ``path``; ``title``: whose they are."""

    CSS_PATH = "../app.tcss"
    TITLE = "adbg"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", "quit", show=False, priority=True),
        Binding("ctrl+l", "redraw", "redraw", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, path: str, known: dict[str, Contents], before: str = "", several: Sequence[Saved] = (), title: str = ""
    ) -> None:
        super().__init__()
        self.register_theme(theme.THEME)
        self.theme = theme.THEME.name
        self._path, self._before, self._several, self._title = path, before, several, title
        self._known = known

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.THEME.variables

    def on_mount(self) -> None:
        if self._several:
            self.push_screen(ListScreen(self._several, self._title, self._open), lambda _: self.exit(0))
        else:
            self.push_screen(ReportScreen(self._path, self._known, self._go, self._before), lambda _: self.exit(0))

    def on_read(self, event: Read) -> None:
        event.stop()
        if self.screen_stack:
            event.then(event)

    def _open(self, path: str) -> None:
        self.push_screen(ReportScreen(path, self._known, self._go))

    def _go(self, screen: ReportScreen, where: SourceLine | str) -> None:
        if isinstance(where, SourceLine):
            self.push_screen(SourceScreen(where))
            return
        frame = screen.frame_here()  # there is no graph without a program: its line
        if frame is not None and frame.line and os.path.isfile(frame.file):
            self.push_screen(SourceScreen(SourceLine(os.path.abspath(frame.file), frame.line, frame.name)))
        else:
            self.bell()
