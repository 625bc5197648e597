"""What the REPL prints besides the prompt.

Threads: one daemon thread, "adbg-printer", takes the debugger's events and prints output, stops and the end; answers
    to commands are printed by the main thread. Every text is one write.
"""

from __future__ import annotations

import os
import queue
import sys
import textwrap
import threading
import time

from prompt_toolkit.utils import get_cwidth

from adbg.engine.errors import AdbgError
from adbg.tui.commands.profile import ended_text
from adbg.tui.commands.startup import stop_commands
from adbg.tui.commands.table import CommandResult, execute
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.end_notes import end_notes
from adbg.tui.debugger.reports import shown_text, stop_report
from adbg.tui.repl.passthrough import terminal_size
from adbg.tui.text.findings import told_line
from adbg.tui.text.formatting import exit_sentence, trace_text
from adbg.tui.text.memory import growth_lines
from adbg.tui.text.profile import is_whole

BOLD, RED, DIM, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"

LONGEST_LINE = 2000  # characters of a question that are said again


class Printer:
    """See the module."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._queue: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.executing = threading.Event()  # the main thread runs a command: stops in its middle are not shown
        self.lost = threading.Event()  # the terminal is gone
        self._reported: object = None  # the stop that was shown last
        self._exit_told = False
        self._open_line = False  # the program's last output does not end in a line end
        self._begun = ""  # that line
        self._live = ""  # a line that is written over again and again, as it stands now

    def start(self) -> None:
        self._debugger.model.subscribe(self._queue.put)
        threading.Thread(target=self._print_events, name="adbg-printer", daemon=True).start()

    def settled(self) -> bool:
        """Whether the program stopped, or ended, and that was printed."""
        debugger = self._debugger
        state = debugger.state
        if state is State.STOPPED:
            return self._reported is debugger.stop
        if state is State.EXITED:
            return self._exit_told
        return state is State.DETACHED and not debugger.program.launched

    def say(self, text: str, style: str = "") -> None:
        """One write, so that lines of two threads do not mix."""
        start = "\n" if self._open_line else "\r\x1b[K" if self._live else ""
        self._open_line, self._live = False, ""
        body = f"{style}{text}{PLAIN}" if style and self.colour else text
        self._write(f"{start}{body}\n")

    def live(self, text: str) -> None:
        """Show ``text`` in a line that the next one replaces; "" takes it away. Cut to the width of the terminal: a
        line that wraps cannot be written over."""
        size = terminal_size()
        text = _cut(text, (size[1] if size else 80) - 1)
        if text == self._live or (not self.colour and text):
            return
        self._live = text
        self._write(f"\r\x1b[K{DIM}{text}{PLAIN}" if text else "\r\x1b[K")

    def say_input_wait(self) -> None:
        """That the program waits for input; then its question again, so that the answer stands behind it."""
        question = self._begun if self._open_line else ""
        self.say("the program waits for input: type it here", DIM)
        if question:
            self._open_line = True
            self._write(question)

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            self.lost.set()  # the terminal is gone; the main thread leaves

    def report(self, line: str, result: CommandResult | AdbgError) -> None:
        if isinstance(result, AdbgError):
            self.say(result.message, RED)
            if result.hint:
                self.say(f"  {result.hint}", DIM)
        elif result.text:
            self.say(result.text)

    def _print_events(self) -> None:
        """The printer thread. A stop waits for 20 ms without output (0.3 s at most): what the program printed before
        it comes another way than the stop, through the keeper, and must be printed first.
        """
        held: events.Stopped | None = None
        since = 0.0
        while True:
            try:
                event = self._queue.get(timeout=0.02 if held is not None else None)
            except queue.Empty:
                event = None
            if isinstance(event, events.Stopped):
                held, since = event, time.monotonic()
            elif event is not None:
                self._print_event(event)
            quiet = event is None or time.monotonic() - since > 0.3
            if held is not None and quiet and not self.executing.is_set():
                stop, held = held, None
                if stop.stop is self._debugger.stop:
                    self._print_stop(stop)

    def _print_event(self, event: events.Event) -> None:
        if isinstance(event, events.Output):
            if event.text:
                self._begun = ((self._begun if self._open_line else "") + event.text)[-LONGEST_LINE:]
                self._begun = self._begun.rpartition("\n")[2].rpartition("\r")[2]
                self._open_line = not event.text.endswith(("\n", "\r"))
                self._write(event.text.replace("\r\n", "\n"))
        elif isinstance(event, events.Trace):
            self.say(trace_text(event.breakpoint, event.text, event.stop), DIM)
        elif isinstance(event, events.Notice):
            self.say(event.text, DIM if event.level == "info" else RED)
        elif isinstance(event, events.ProfileEnded):
            self.say(ended_text(event.state), DIM if is_whole(event.state) else RED)
        elif isinstance(event, events.MemoryGrows):
            self.say("\n".join(growth_lines(event.growth)), RED)
        elif isinstance(event, events.Found):
            if event.worth_a_line:
                weak = event.what != "told" or event.finding.severity == "note"
                self.say(told_line(event.finding, event.what, event.rank), DIM if weak else RED)
        elif isinstance(event, events.StopQueued):
            self.say(
                f"{event.process.title} stopped too: it is next, `process {event.process.number}` switches to it", DIM
            )
        elif isinstance(event, events.ProcessJoined):
            if arrival := event.process.arrival():
                self.say(arrival, DIM)
        elif isinstance(event, events.Exited):
            if event.ended_by != "restart":
                self.say(exit_sentence(event.status), BOLD)
                for note in end_notes(self._debugger) if event.run == self._debugger.run.number else ():
                    self.say(note)
            self._exit_told = True
        elif isinstance(event, events.Started):
            self._exit_told = False

    def _print_stop(self, event: events.Stopped) -> None:
        debugger = self._debugger
        title, _, rest = stop_report(event.process.view, event.stop).partition("\n")
        if len(debugger.processes) > 1:
            title = f"[{event.process.title}] {title}"
        self.say(title, BOLD)
        if rest:
            self.say(_at_words(rest))
        for row in debugger.displays.values():
            self.say(shown_text(row), BOLD if row.changed else "")
        for line in stop_commands(debugger):
            try:
                result = execute(debugger, line)
            except AdbgError as error:
                self.report(line, error)
                continue
            self.report(line, result)
            if result.running:
                return  # the next stop is the one to wait for
        self._reported = event.stop


def _at_words(text: str) -> str:
    """Lines that are longer than the terminal is wide go on below, indented; none is cut within a word. As it is where
    there is no terminal."""
    size = terminal_size()
    if size is None:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        below = " " * (len(line) - len(line.lstrip()) + 2)
        fits = len(line) < size[1] or not line.strip()
        lines += [line] if fits else textwrap.wrap(
            line, max(20, size[1] - 1), subsequent_indent=below, break_long_words=False, break_on_hyphens=False
        )  # fmt: skip
    return "\n".join(lines)


def _cut(text: str, cells: int) -> str:
    """``text`` in at most ``cells`` of the terminal's."""
    if get_cwidth(text) <= cells:
        return text
    while text and get_cwidth(text) > cells - 1:
        text = text[:-1]
    return text.rstrip() + "…"
