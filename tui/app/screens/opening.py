"""The screens that a key opens over the main one. UI thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import SourceLine
from adbg.tui.app.lines.line_panel import LinePanel
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.screens.help import HelpScreen, live_keys
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.app.screens.memory import Answer, MemoryScreen
from adbg.tui.app.screens.output import OutputScreen
from adbg.tui.app.screens.threads import ThreadsScreen
from adbg.tui.app.typeahead import TypeAhead
from adbg.tui.commands.memory.tables import MANY
from adbg.tui.commands.table import TABLE
from adbg.tui.commands.threads import read_all
from adbg.tui.debugger.debugger import Debugger


class OtherScreens(TypeAhead[int]):
    """An app that opens them by their names."""

    debugger: Debugger
    main: MainScreen
    lookups: Lookups
    feed: Any  # the app's EventFeed, which is above this room

    def action_screen(self, name: str) -> None:
        """ "help", "output", "threads", "memory", "profile"."""
        _OPEN[name](self)

    def type_in(self, data: bytes) -> None:
        """Hand what was typed to the program."""
        try:
            self.debugger.program.write_stdin(data)
        except (AdbgError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)


def _help(app: OtherScreens) -> None:
    keys = live_keys([app, app.main, *app.main.walk_children(LinePanel)], app)
    rows = [(row.group, f"{row.name} {row.args}".strip(), row.summary) for row in TABLE.commands()]
    app.push_screen(HelpScreen(keys, rows))


def _output(app: OtherScreens) -> None:
    typing = app.debugger.alive and app.debugger.program.launched
    app.push_screen(OutputScreen(app.feed.output, app.type_in, typing))


def _threads(app: OtherScreens) -> None:
    """Every thread; the line that is chosen there is shown in the source panel."""

    def chosen(place: SourceLine | None) -> None:
        if place is not None:
            app.main.code.show(place)
            app.main.action_panel("source", zoom=False)

    app.push_screen(ThreadsScreen(app.lookups.ask, partial(read_all, app.debugger, every=True)), chosen)


def _memory(app: OtherScreens) -> None:
    """What uses memory; the line that is chosen there is shown in the source panel."""
    debugger = app.debugger

    def question(watch: bool | None) -> Callable[[], Answer]:
        def ask() -> Answer:
            stop = debugger.view.stop
            return stop, debugger.view.request(protocol.Memory(MANY, watch))

        return ask

    def chosen(place: SourceLine | None) -> None:
        if place is not None:
            app.main.code.show(place)
            app.main.action_panel("source", zoom=False)

    app.push_screen(MemoryScreen(app.lookups.ask, question, lambda: debugger.view.stop), chosen)


def _profile(app: OtherScreens) -> None:
    app.feed.profiles.ask()


_OPEN: dict[str, Callable[[OtherScreens], None]] = {
    "help": _help, "output": _output, "threads": _threads, "memory": _memory, "profile": _profile,
}  # fmt: skip
