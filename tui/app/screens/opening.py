"""The screens that a key opens over the main one. UI thread."""

from __future__ import annotations

from functools import partial
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.engine.types import SourceLine
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.screens.help import HelpScreen, live_keys
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.app.screens.output import OutputScreen
from adbg.tui.app.screens.threads import ThreadsScreen
from adbg.tui.app.typeahead import TypeAhead
from adbg.tui.commands.table import TABLE
from adbg.tui.commands.threads import read_all
from adbg.tui.debugger.debugger import Debugger


class OtherScreens(TypeAhead[int]):
    """The actions of an app that open them."""

    debugger: Debugger
    main: MainScreen
    lookups: Lookups
    feed: Any  # the app's EventFeed, which is above this room

    def action_help(self) -> None:
        keys = live_keys([self, self.main, *self.main.walk_children(LinePanel)], self)
        rows = [(row.group, f"{row.name} {row.args}".strip(), row.summary) for row in TABLE.commands()]
        self.push_screen(HelpScreen(keys, rows))

    def action_output(self) -> None:
        typing = self.debugger.alive and self.debugger.program.launched
        self.push_screen(OutputScreen(self.feed.output, partial(type_in, self), typing))

    def action_threads(self) -> None:
        """Every thread; the line that is chosen there is shown in the source panel."""

        def chosen(place: SourceLine | None) -> None:
            if place is not None:
                self.main.code.show(place)
                self.main.action_panel("source", zoom=False)

        self.push_screen(ThreadsScreen(self.lookups.ask, partial(read_all, self.debugger)), chosen)


def type_in(app: OtherScreens, data: bytes) -> None:
    """Into the program's terminal; why it cannot be is shown."""
    try:
        app.debugger.program.write_stdin(data)
    except (AdbgError, OSError) as error:
        app.notify(str(error), severity="error", markup=False)
