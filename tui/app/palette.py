"""The command palette (ctrl+p), filled from the command table. UI thread."""

from __future__ import annotations

from functools import partial
from typing import Protocol, runtime_checkable

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.fuzzy import Matcher
from textual.markup import escape

from adbg.tui.commands.table import TABLE, Command


@runtime_checkable
class RunsLines(Protocol):
    """The app."""

    def run_line(self, line: str) -> None:
        """Run a console command."""


class TableCommands(Provider):
    """A command without arguments runs; one with arguments is put on the command line, ready to be completed."""

    def _run(self, command: Command) -> None:
        app = self.app
        assert isinstance(app, RunsLines)
        if command.args and not command.args.startswith("["):
            self.app.call_later(self.app.run_action, f"command('{command.name} ')")
        else:
            app.run_line(command.name)

    @staticmethod
    def _title(command: Command) -> str:
        return f"{command.name} {command.args}".strip()

    async def discover(self) -> Hits:
        """All of them, in the order of the reference."""
        for command in TABLE.commands():
            yield DiscoveryHit(
                Content(self._title(command)), partial(self._run, command), command.name, escape(command.summary)
            )

    async def search(self, query: str) -> Hits:
        """Those whose name or summary matches."""
        matcher = self.matcher(query)
        for command in TABLE.commands():
            title = self._title(command)
            score = max(matcher.match(title), matcher.match(command.summary) * 0.6)
            if score > 0:
                shown, run = _highlighted(matcher, title), partial(self._run, command)
                yield Hit(score, shown, run, command.name, escape(command.summary))


def _highlighted(matcher: Matcher, title: str) -> Content:
    """The title with what matched standing out. ``Matcher.highlight`` reads it as markup: "[N]" would be gone."""
    content = Content(title)
    score, offsets = matcher.fuzzy_search.match(matcher.query, title)
    for offset in offsets if score else ():
        if not title[offset].isspace():
            content = content.stylize(matcher.match_style, offset, offset + 1)
    return content
