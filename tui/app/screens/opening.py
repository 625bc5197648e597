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
from adbg.tui.app.messages import Read
from adbg.tui.app.screens.findings import FindingsScreen
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
from adbg.tui.text.findings import Ranked, place_of


class OtherScreens(TypeAhead[int]):
    """An app that opens them by their names."""

    debugger: Debugger
    main: MainScreen
    lookups: Lookups
    feed: Any  # the app's EventFeed, which is above this room
    reader: Any  # its StopReader, likewise
    runner: Any  # its CommandRunner, likewise

    def action_screen(self, name: str) -> None:
        """ "help", "output", "threads", "memory", "findings", "profile"."""
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


def _findings(app: OtherScreens) -> None:
    """What is wrong. The finding that is chosen is shown in all panels: node, value, and the line to change."""
    debugger, main = app.debugger, app.main

    def chosen(row: Ranked | str | None) -> None:
        if row is None:
            return
        if isinstance(row, str):
            app.runner.run(row)
            return
        place, name = place_of(row.finding), (row.finding.node and row.finding.node.unique_name) or ""

        def show(index: int) -> None:
            if index:
                app.reader.instead = (index, place) if place is not None else None
                main.graph.go_to(index)
            if place is not None:
                main.code.show(place)
            main.action_panel("source" if place is not None else "graph", zoom=False)

        def found(read: Read) -> None:
            show(read.result if read.error is None else 0)
            if read.error is not None:
                main.notify(f"{name}: {read.error}", severity="warning", timeout=4, markup=False)

        if name and debugger.stop is not None:
            app.lookups.ask("finding", name, lambda: debugger.view.find_node(name), found)
            return
        # Of the graph as it was at the last stop. What names no node is shown at one of its line.
        model = main.graph.model
        index = model.named(name) if name else model.made_at(row.finding.forward, place)
        show(index)
        if name and not index:
            main.notify(f"{name} is not in the graph shown: `b {name}` stops there", timeout=4, markup=False)

    app.push_screen(FindingsScreen(debugger, app.lookups.ask), chosen)


def _profile(app: OtherScreens) -> None:
    app.feed.profiles.ask()


_OPEN: dict[str, Callable[[OtherScreens], None]] = {
    "help": _help, "output": _output, "threads": _threads, "memory": _memory, "profile": _profile,
    "findings": _findings,
}  # fmt: skip
