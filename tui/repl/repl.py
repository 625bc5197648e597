"""The line REPL: a prompt while the program stands, its own terminal passed through while it runs.

Threads: the main thread prompts, runs commands, and passes keys on. One daemon thread, "adbg-printer", takes the
    debugger's events and prints all that is not the answer to a command: output, stops, the end.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from adbg.engine.errors import AdbgError
from adbg.tui.commands.startup import opens_block, run_startup, stop_commands
from adbg.tui.commands.table import CommandResult, execute, repeatable
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.end_notes import end_notes
from adbg.tui.debugger.reports import shown_text, stop_report
from adbg.tui.debugger.signals import handed_on, letting_go
from adbg.tui.repl.passthrough import keys_for_program, read_keys, terminal_size
from adbg.tui.text.formatting import exit_sentence, trace_text

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.data_structures import Size
    from prompt_toolkit.input import Input

PROMPT = "(adbg) "
TWICE = 2.0  # seconds within which a second Ctrl-C interrupts the program
BOLD, RED, DIM, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[2m", "\x1b[0m"


def run_repl(debugger: Debugger) -> int:
    """Prompt until the person leaves; returns adbg's exit status (the script's, when it ended).

    Raises:
        AdbgError: the program cannot be started.
    """
    return Repl(debugger).run()


def history_path() -> Path:
    """$XDG_STATE_HOME/adbg/history, else ~/.local/state/adbg/history; the app's console uses the same."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "adbg" / "history"


class Repl:
    """One session at the prompt."""

    def __init__(self, debugger: Debugger) -> None:
        self.debugger = debugger
        self.queue: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.executing = threading.Event()  # the main thread runs a command: stops in its middle are not shown
        self.reported: object = None  # the stop that was shown last
        self.exit_told = False
        self.lost = threading.Event()  # the terminal is gone
        self.leaving = False
        self._ended_by_us = False
        self.open_line = False  # the program's last output does not end in a line end
        self.last = ""  # what an empty line repeats
        self.interrupts: list[float] = []
        self.ahead: list[str] = []  # lines typed while the program ran, which it did not read
        self.begun = ""  # the beginning of another one
        self._keyboard: Input | None = None  # the prompt's

    # ------------------------------------------------------------------ main thread

    def run(self) -> int:
        debugger = self.debugger
        debugger.subscribe(self.queue.put)
        threading.Thread(target=self._print_events, name="adbg-printer", daemon=True).start()
        session = self._session()
        self._keyboard = session.app.input
        try:
            with letting_go(debugger, ("SIGTERM", "SIGHUP")), handed_on(debugger, ("SIGUSR1", "SIGUSR2")):
                self._start()
                while not self.leaving:
                    self._prompt(session)
        finally:
            debugger.close()
        return debugger.exit_code if debugger.exit_code is not None and not self._ended_by_us else 0

    def _start(self) -> None:
        """Start-up on a thread of its own, so that keys and Ctrl-C work meanwhile."""
        problem: list[AdbgError] = []
        done = threading.Event()
        cancelled = threading.Event()

        def work() -> None:
            try:
                run_startup(self.debugger, self._report, cancelled)
            except AdbgError as error:
                problem.append(error)
            finally:
                done.set()

        self._say(self._starting(), DIM)
        threading.Thread(target=work, name="adbg-startup", daemon=True).start()
        self._watch(done)
        if problem:
            raise problem[0]

    def _starting(self) -> str:
        debugger = self.debugger
        if not debugger.program.launched:
            return f"attaching to {debugger.title}; Ctrl-C pauses it"
        where = "where the first backward begins" if debugger.stop_at_entry else "at the first breakpoint that is hit"
        return f"starting {debugger.title}; it stops {where}, Ctrl-C pauses it"

    def _prompt(self, session: PromptSession[str]) -> None:
        from prompt_toolkit.patch_stdout import patch_stdout

        try:
            with patch_stdout(raw=True):
                line = self._line(session, PROMPT)
                line = self._whole(session, line)
        except KeyboardInterrupt:
            return
        except EOFError:
            self._leave()
            return
        except OSError:
            self._abandon()
            return
        if not line.strip():
            line = self.last
        self.last = line if repeatable(line) else ""
        if line.strip():
            self._run(line)

    def _line(self, session: PromptSession[str], prompt: str) -> str:
        """What was typed ahead, else what is typed now."""
        if self.ahead:
            line = self.ahead.pop(0)
            self._say(prompt + line)
            return line
        begun, self.begun = self.begun, ""
        return session.prompt(prompt, default=begun)

    def _whole(self, session: PromptSession[str], line: str) -> str:
        """With its further lines: of a Python block after ``!``, of ``commands N`` up to ``end``."""
        text = line.strip()
        if text.startswith("!"):
            while _incomplete(line.lstrip()[1:].lstrip(" ")):
                line += "\n" + self._line(session, "    ... ")
        elif opens_block(text) and self.debugger.breakpoints:
            while (more := self._line(session, "      > ")).strip() != "end":
                line += "\n" + more
        return line

    def _run(self, line: str) -> None:
        self.executing.set()
        try:
            result = execute(self.debugger, line)
        except AdbgError as error:
            self._report(line, error)
            return
        except KeyboardInterrupt:
            if self.debugger.state is State.RUNNING:
                with contextlib.suppress(AdbgError):
                    self.debugger.pause()
                self.executing.clear()
                self._watch()
            else:
                self._say("interrupted; the program may go on with what it was asked", DIM)
            return
        finally:
            self.executing.clear()
        if result.quit:
            self._leave()
            return
        self._report(line, result)
        if result.running and not result.background:
            self._watch()

    def _leave(self) -> None:
        """Quit; asks when a program would end by it."""
        debugger = self.debugger
        if not debugger.alive or not debugger.program.launched:
            self.leaving = True
            return
        try:
            answer = (
                input("The program has not ended. End it? (y)es, (d)etach and let it run on, (n)o: ").strip().lower()
            )
        except KeyboardInterrupt:
            answer = "n"
            self._say("")
        except (EOFError, OSError):  # Ctrl-D twice is yes; a terminal that hung up is not
            answer = "y" if terminal_size() is not None else ""
            self._say("")
            if not answer:
                self._abandon()
        if answer[:1] == "y":
            self.leaving = self._ended_by_us = True
        elif answer[:1] == "d":
            debugger.detach()
            self.leaving = True

    # ------------------------------------------------------------------ while the program runs

    def _watch(self, until: threading.Event | None = None) -> None:
        """Pass keys to the program until it stands still and that was shown, or ended (and ``until`` is set)."""
        debugger = self.debugger
        fd = sys.stdin.fileno()
        size = terminal_size()
        self.interrupts.clear()
        with self._ctrl_c(), keys_for_program(fd):
            self._type(self._typed_behind())
            while not (self._settled() and (until is None or until.is_set())):
                if until is not None and until.is_set() and debugger.state is State.NEW:
                    return
                keys = read_keys(fd, 0.05)
                if keys is None or self.lost.is_set():
                    self._abandon()
                    return
                self._type(keys)
                now = terminal_size()
                if now is not None and now != size:
                    size = now
                    debugger.resize(*now)
        # As on a terminal that program and debugger share: what the program did not read is the prompt's.
        if debugger.state in (State.STOPPED, State.EXITED):
            *lines, self.begun = (self.begun + debugger.program.take_unread()).split("\n")
            self.ahead += lines

    def _type(self, keys: bytes) -> None:
        if keys:
            with contextlib.suppress(AdbgError):
                self.debugger.write_stdin(keys)

    def _typed_behind(self) -> bytes:
        """What the prompt read together with the line that set the program going."""
        if self._keyboard is None or not self.debugger.program.launched:
            return b""  # an attached program has a terminal of its own: the next prompt reads it
        from prompt_toolkit.input.typeahead import get_typeahead

        keys = "".join(key.data for key in get_typeahead(self._keyboard))
        # As bytes they would be signals to the program: a Ctrl-C means the debugger, and what is behind it is dropped.
        keys, interrupt, _ = keys.partition("\x03")
        if interrupt:
            threading.Thread(target=self._interrupt, args=(False,), name="adbg-interrupt", daemon=True).start()
        return keys.replace("\x1a", "").replace("\x1c", "").encode()

    def _abandon(self) -> None:
        """The terminal is gone; the program, which has one of its own, goes on."""
        self.lost.set()
        self.leaving = True
        if self.debugger.alive:
            with contextlib.suppress(AdbgError):
                self.debugger.detach()

    def _settled(self) -> bool:
        debugger = self.debugger
        state = debugger.state
        if state is State.STOPPED:
            return self.reported is debugger.stop
        if state is State.EXITED:
            return self.exit_told
        return state is State.DETACHED and not debugger.program.launched

    @contextlib.contextmanager
    def _ctrl_c(self) -> Iterator[None]:
        """The first Ctrl-C pauses, a second one within TWICE seconds is the program's own."""

        def pressed(_number: int, _frame: FrameType | None) -> None:
            now = time.monotonic()
            again = bool(self.interrupts) and now - self.interrupts[-1] < TWICE
            self.interrupts.append(now)
            # On a thread: a handler runs between two bytecodes of the main thread, which may hold the debugger's lock.
            threading.Thread(target=self._interrupt, args=(again,), name="adbg-interrupt", daemon=True).start()

        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, again: bool) -> None:
        debugger = self.debugger
        try:
            if again or debugger.state is not State.RUNNING or not debugger.joined:
                debugger.interrupt()
            else:
                debugger.pause()
                self._say("pausing at the next node; Ctrl-C again within 2 s interrupts the program", DIM)
        except AdbgError as error:
            self._say(str(error), RED)

    # ------------------------------------------------------------------ printing

    def _say(self, text: str, style: str = "") -> None:
        """One write, so that lines of two threads do not mix."""
        start = "\n" if self.open_line else ""
        self.open_line = False
        body = f"{style}{text}{PLAIN}" if style and self.colour else text
        self._write(f"{start}{body}\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            self.lost.set()  # the terminal is gone; the main thread leaves

    def _report(self, line: str, result: CommandResult | AdbgError) -> None:
        if isinstance(result, AdbgError):
            self._say(result.message, RED)
            if result.hint:
                self._say(f"  {result.hint}", DIM)
        elif result.text:
            self._say(result.text)

    def _print_events(self) -> None:
        """The printer thread. A stop waits for 20 ms of silence (0.3 s at most): what the program printed before it
        comes through the keeper, on another way than the stop, and must stand above it.
        """
        held: events.Stopped | None = None
        since = 0.0
        while True:
            try:
                event = self.queue.get(timeout=0.02 if held is not None else None)
            except queue.Empty:
                event = None
            if isinstance(event, events.Stopped):
                held, since = event, time.monotonic()
            elif event is not None:
                self._print_event(event)
            quiet = event is None or time.monotonic() - since > 0.3
            if held is not None and quiet and not self.executing.is_set():
                stop, held = held, None
                if stop.stop is self.debugger.stop:
                    self._print_stop(stop)

    def _print_event(self, event: events.Event) -> None:
        if isinstance(event, events.Output):
            if event.text:
                self.open_line = not event.text.endswith(("\n", "\r"))
                self._write(event.text.replace("\r\n", "\n"))
        elif isinstance(event, events.Trace):
            self._say(trace_text(event.breakpoint, event.text, event.stop), DIM)
        elif isinstance(event, events.Notice):
            self._say(event.text, DIM if event.level == "info" else RED)
        elif isinstance(event, events.StopQueued):
            self._say(
                f"{event.process.title} stopped too: it comes next, `process {event.process.number}` goes there", DIM
            )
        elif isinstance(event, events.Exited):
            if event.ended_by != "restart":
                self._say(exit_sentence(event.status), BOLD)
                for note in end_notes(self.debugger) if event.run == self.debugger.run else ():
                    self._say(note)
            self.exit_told = True
        elif isinstance(event, events.Started):
            self.exit_told = False

    def _print_stop(self, event: events.Stopped) -> None:
        debugger = self.debugger
        title, _, rest = stop_report(debugger, event.stop).partition("\n")
        if len(debugger.processes) > 1:
            title = f"[{event.process.title}] {title}"
        self._say(title, BOLD)
        if rest:
            self._say(rest)
        for row in debugger.shown_values():
            self._say(shown_text(row), BOLD if row.changed else "")
        for line in stop_commands(debugger):
            try:
                result = execute(debugger, line)
            except AdbgError as error:
                self._report(line, error)
                continue
            self._report(line, result)
            if result.running:
                return  # the next stop is the one to wait for
        self.reported = event.stop

    # ------------------------------------------------------------------ the prompt itself

    def _session(self) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output.vt100 import Vt100_Output

        from adbg.tui.repl.completion import CommandCompleter
        from adbg.tui.repl.highlighting import CommandLexer

        path = history_path()
        history: FileHistory | InMemoryHistory
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            history = FileHistory(str(path))
        except OSError:
            history = InMemoryHistory()  # a home that cannot be written is no reason not to debug
        return PromptSession(
            # Without the cursor position requests: where a terminal leaves them unanswered (some multiplexers, serial
            # lines), output that comes while the prompt stands would wait for the answer.
            output=Vt100_Output(sys.stdout, _screen_size, os.environ.get("TERM"), enable_cpr=False),
            history=history,
            completer=CommandCompleter(self.debugger),
            complete_in_thread=True,
            complete_while_typing=False,
            lexer=CommandLexer() if self.colour else None,
            enable_history_search=True,
        )


def _screen_size() -> Size:
    from prompt_toolkit.data_structures import Size

    rows, columns = terminal_size() or (24, 80)
    return Size(rows, columns)


def _incomplete(source: str) -> bool:
    """Whether Python waits for more lines; a block ends with an empty one."""
    import codeop
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(source, "<adbg>", "single") is None
    except (SyntaxError, ValueError, OverflowError):
        return False
