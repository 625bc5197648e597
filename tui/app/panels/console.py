"""The console's command line: history, ghost suggestion, completion. UI thread; suggestions are asked for in a worker
thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from adbg.tui.app.panels.transcript import Transcript
from adbg.tui.repl.blocks import commands_in

Complete = Callable[[str], Sequence[str]]  # line up to the cursor -> whole lines that it may become


class LineSuggester(Suggester):
    """First from the history (most recent first), then from the completer."""

    def __init__(self, history: History, complete: Complete) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._history = history
        self._complete = complete
        self.quiet = False  # nothing is suggested

    async def get_suggestion(self, value: str) -> str | None:
        """The line that is most likely meant."""
        if not value.strip() or self.quiet:
            return None
        for line in reversed(self._history.lines):
            if line.startswith(value) and line != value:
                return line
        found = await asyncio.get_running_loop().run_in_executor(None, self._complete, value)
        return next((line for line in found if line.startswith(value) and line != value), None)


class History:
    """Lines typed, oldest first; the file is the line REPL's (prompt_toolkit's format), so both share it."""

    def __init__(self, path: str = "") -> None:
        self.lines: list[str] = []
        self._file: Any = None
        if path:
            from prompt_toolkit.history import FileHistory

            with contextlib.suppress(OSError):
                self._file = FileHistory(path)
                self.lines = list(self._file.load_history_strings())[::-1]

    def add(self, line: str) -> None:
        """Remember ``line`` unless it is the one before again."""
        if line.strip() and (not self.lines or self.lines[-1] != line):
            self.lines.append(line)
            if self._file is not None:
                try:
                    self._file.store_string(line)
                except OSError:
                    self._file = None

    def before(self, at: int, prefix: str) -> int | None:
        """Position of the line before position ``at`` that begins with ``prefix``."""
        return next((i for i in range(min(at, len(self.lines)) - 1, -1, -1) if self.lines[i].startswith(prefix)), None)

    def after(self, at: int, prefix: str) -> int | None:
        return next((i for i in range(at + 1, len(self.lines)) if self.lines[i].startswith(prefix)), None)


class CommandInput(Input):
    """Enter runs, tab completes (again: the next one), up and down walk the history, page up and page down scroll the
    output, escape leaves, 5 and z at the beginning zoom. Pasted lines run."""

    BINDINGS = [
        Binding("up", "older", "Older line", show=False),
        Binding("down", "newer", "Newer line", show=False),
        Binding("tab", "complete", "Complete", show=False),
        Binding("ctrl+r", "search_history", "Search history", show=False),
        Binding("escape", "app.toggle_console", "Leave the console", show=False),
        Binding("ctrl+l", "clear_output", "Clear the output", show=False),
        Binding("pageup", "scroll_output(-1)", "Page up in the output", show=False),
        Binding("pagedown", "scroll_output(1)", "Page down in the output", show=False),
    ]

    @dataclass(eq=False)
    class Candidates(Message):
        """Several completions: show them."""

        lines: Sequence[str]

    @dataclass(eq=False)
    class ForProgram(Message):
        """The program waits for input: type this."""

        data: bytes

    def __init__(self, history: History, complete: Complete, **options: Any) -> None:
        self._ghost = LineSuggester(history, complete)
        super().__init__(suggester=self._ghost, compact=True, select_on_focus=False, **options)
        self.cursor_blink = False
        self.history = history
        self._complete = complete
        self._at = len(history.lines)
        self._prefix = ""
        self._cycle: tuple[list[str], int] | None = None
        self._pasted: deque[str] = deque()  # commands that were submitted and not taken
        self.for_program = ""  # "line" or "secret": what is entered is the program's, unless it begins with a colon

    def give_to_program(self, wait: str) -> None:
        """The program waits for input (``InputWatch.wait``), or does no more."""
        if self.password:
            self.discard()  # what was typed of one is nothing to be shown
        self.for_program, self._ghost.quiet = wait, bool(wait)
        self.password = wait == "secret"
        self.placeholder = "for the program · : first for a command of adbg · ctrl+d ends the input" if wait else ""

    async def action_submit(self) -> None:
        if not self.for_program or self.value.startswith(":"):
            await super().action_submit()
            return
        line, self.value = self.value, ""  # not for the history: it may be a password
        self.post_message(self.ForProgram(line.encode() + b"\n"))

    def accept(self) -> tuple[str, bool]:
        """The command that was submitted, taken out of the widget and into the history; whether it was pasted."""
        pasted = bool(self._pasted)
        if pasted:
            line = self._pasted.popleft()
        else:
            line, self.value = self.value, ""
        self.history.add(line)
        self._at, self._prefix = len(self.history.lines), ""
        return line, pasted

    def _on_paste(self, event: events.Paste) -> None:
        """Complete lines run, one after the other; the rest is put in."""
        event.stop()
        event.prevent_default()
        text = event.text
        if len(text.splitlines()) < 2 and not text.endswith(("\n", "\r")):
            self.insert_text_at_cursor(text)
            return
        at = self.cursor_position
        if self.for_program:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
            typed, end, begun = (self.value[:at] + text + self.value[at:]).rpartition("\n")
            self._show(begun)
            self.post_message(self.ForProgram((typed + end).encode()))
            return
        commands, begun = commands_in(self.value[:at] + text + self.value[at:])
        self._show(begun)
        self._pasted += commands
        for command in commands:
            self.post_message(self.Submitted(self, command))

    def discard(self) -> None:
        """Forget what is typed."""
        self.value = ""
        self._at, self._prefix, self._cycle = len(self.history.lines), "", None

    async def on_key(self, event: Any) -> None:
        if self.for_program and event.key == "ctrl+d" and not self.value:
            event.prevent_default()
            event.stop()
            self.post_message(self.ForProgram(b"\x04"))
        # As in the other panels: no command begins with these.
        if event.key in ("5", "z") and not self.value and not self.for_program:
            event.prevent_default()
            event.stop()
            await self.run_action("screen.zoom")
        if event.key not in ("up", "down"):
            self._at, self._prefix = len(self.history.lines), ""
        if event.key != "tab":
            self._cycle = None

    def _show(self, line: str) -> None:
        self.value = line
        self.cursor_position = len(line)

    def action_older(self) -> None:
        if self._at == len(self.history.lines):
            self._prefix = self.value
        found = self.history.before(self._at, self._prefix)
        if found is not None:
            self._at = found
            self._show(self.history.lines[found])

    def action_newer(self) -> None:
        found = self.history.after(self._at, self._prefix)
        self._at = len(self.history.lines) if found is None else found
        self._show(self._prefix if found is None else self.history.lines[found])

    def action_search_history(self) -> None:
        """The next older line that contains what is typed."""
        wanted = self._prefix or self.value
        self._prefix = wanted
        for position in range(min(self._at, len(self.history.lines)) - 1, -1, -1):
            if wanted in self.history.lines[position]:
                self._at = position
                self._show(self.history.lines[position])
                return
        self.app.bell()

    async def action_complete(self) -> None:
        """Complete what is typed: the common part first, then one after the other."""
        if self._cycle is not None:
            lines, at = self._cycle
            self._cycle = (lines, (at + 1) % len(lines))
            self._show(lines[self._cycle[1]])
            return
        value = self.value[: self.cursor_position]
        if self.for_program and not value.startswith(":"):
            self.app.bell()
            return
        lines = list(await asyncio.get_running_loop().run_in_executor(None, self._complete, value))
        if not lines:
            self.app.bell()
        elif len(lines) == 1:
            self._show(lines[0])
        else:
            common = lines[0]
            for line in lines:
                while not line.startswith(common):
                    common = common[:-1]
            self.post_message(self.Candidates(lines))
            if len(common) > len(value):
                self._show(common)
            else:
                self._cycle = (lines, -1)

    def action_clear_output(self) -> None:
        self.app.query_one(Transcript).clear()

    def action_scroll_output(self, step: int) -> None:
        self.app.query_one(Transcript).action_page(2 * step)
