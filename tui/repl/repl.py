"""The line REPL: a prompt while the program is stopped, its own terminal passed through while it runs.

Threads: the main thread prompts, runs commands, and passes keys on. One daemon thread prints what happens: see
    ``printer``.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from adbg.engine.errors import AdbgError
from adbg.tui.commands.startup import opens_block, run_startup
from adbg.tui.commands.table import execute, repeatable
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.input_watch import InputWatch
from adbg.tui.debugger.reports import entering_rows
from adbg.tui.debugger.signals import Interrupts, handed_on, letting_go
from adbg.tui.repl.blocks import commands_in, incomplete, python_of
from adbg.tui.repl.passthrough import keys_for_program, read_keys, terminal_size
from adbg.tui.repl.printer import DIM, RED, Printer
from adbg.tui.repl.prompt import prompt_session
from adbg.tui.text.attach import entering_summary

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import Input

PROMPT = "(adbg) "


def run_repl(debugger: Debugger) -> int:
    """Prompt until the user leaves; returns adbg's exit status (the script's, when it ended).

    Raises:
        AdbgError: the program cannot be started.
    """
    return Repl(debugger).run()


class Repl:
    """One session at the prompt."""

    def __init__(self, debugger: Debugger) -> None:
        self.debugger = debugger
        self.printer = Printer(debugger)
        self.leaving = False
        self._ended_by_us = False
        self.last = ""  # what an empty line repeats
        self.interrupts = Interrupts(debugger)
        self.ahead: list[str] = []  # lines typed while the program ran, which it did not read
        self.begun = ""  # the beginning of another one
        self._kept = ""  # typed while a program runs that does not read it
        self._keyboard: Input | None = None  # the prompt's

    # ------------------------------------------------------------------ main thread

    def run(self) -> int:
        debugger = self.debugger
        self.printer.start()
        session = prompt_session(debugger, self.printer.colour)
        self._keyboard = session.app.input
        try:
            with letting_go(debugger, ("SIGTERM", "SIGHUP")), handed_on(debugger, ("SIGUSR1", "SIGUSR2")):
                self._start()
                while not self.leaving:
                    # One that was meant to pause may come between two commands: it must not end the program.
                    with contextlib.suppress(KeyboardInterrupt):
                        self._prompt(session)
        finally:
            debugger.close()
        return debugger.run.exit_code if debugger.run.exit_code is not None and not self._ended_by_us else 0

    def _start(self) -> None:
        """Start-up on a thread of its own, so that keys and Ctrl-C work meanwhile."""
        problem: list[AdbgError] = []
        done = threading.Event()
        cancelled = threading.Event()

        def work() -> None:
            try:
                run_startup(self.debugger, self.printer.report, cancelled)
            except AdbgError as error:
                problem.append(error)
            finally:
                done.set()

        self.printer.say(self._starting(), DIM)
        threading.Thread(target=work, name="adbg-startup", daemon=True).start()
        self._watch(done)
        if problem:
            raise problem[0]

    def _starting(self) -> str:
        debugger = self.debugger
        if not debugger.program.launched:
            return f"attaching to {debugger.title}"
        where = (
            "where the first backward begins"
            if debugger.settings.stop_at_entry
            else "at the first breakpoint that is hit"
        )
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
            self.printer.say(prompt + line)
            return line
        begun, self.begun = self.begun, ""
        line = session.prompt(prompt, default=begun)
        if prompt == PROMPT and "\n" in line:  # a paste: on the screen already
            commands, self.begun = commands_in(line)
            self.ahead += commands[1:]
            line = commands[0] if commands else "#"
        return line

    def _whole(self, session: PromptSession[str], line: str) -> str:
        """With its further lines: of a Python block after ``!``, of ``commands N`` up to ``end``."""
        text = line.strip()
        if text.startswith("!"):
            while incomplete(python_of(line)):
                line += "\n" + self._line(session, "    ... ")
        elif opens_block(text) and self.debugger.settings.breakpoints:
            while (more := self._line(session, "      > ")).strip() != "end":
                line += "\n" + more
        return line

    def _run(self, line: str) -> None:
        self.printer.executing.set()
        try:
            result = execute(self.debugger, line)
        except AdbgError as error:
            self.printer.report(line, error)
            return
        except KeyboardInterrupt:
            if self.debugger.state is State.RUNNING:
                with contextlib.suppress(AdbgError):
                    self.debugger.pause()
                self.printer.executing.clear()
                self._watch()
            else:
                self.printer.say("interrupted; the program may still be busy with the command", DIM)
            return
        finally:
            self.printer.executing.clear()
        if result.quit:
            self._leave()
            return
        self.printer.report(line, result)
        if result.running and not result.background:
            self._watch()

    def _leave(self) -> None:
        """Quit; asks first when that would end a program."""
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
            self.printer.say("")
        except (EOFError, OSError):  # Ctrl-D twice is yes; a terminal that hung up is not
            answer = "y" if terminal_size() is not None else ""
            self.printer.say("")
            if not answer:
                self._abandon()
        if answer in ("y", "yes"):  # "yclear" was meant for another line
            self.leaving = self._ended_by_us = True
        elif answer in ("d", "detach"):
            debugger.detach()
            self.leaving = True

    # ------------------------------------------------------------------ while the program runs

    def _watch(self, until: threading.Event | None = None) -> None:
        """Pass keys to the program until it stopped or ended and that was printed (and ``until`` is set)."""
        debugger = self.debugger
        fd = sys.stdin.fileno()
        size = terminal_size()
        self.interrupts.forget()
        with self._ctrl_c(), keys_for_program(fd):
            self._type(self._typed_after())
            told, watch = False, InputWatch(debugger)
            while not ((self.printer.settled() or self._free(until)) and (until is None or until.is_set())):
                self._show_entering()
                if until is not None and until.is_set() and debugger.state is State.NEW:
                    return
                keys = read_keys(fd, 0.05)
                if keys is None or self.printer.lost.is_set():
                    self._abandon()
                    return
                self._type(keys)
                if not told and watch.poll():
                    told = True  # once: the questions that follow are seen
                    self.printer.say_input_wait()
                now = terminal_size()
                if now is not None and now != size:
                    size = now
                    debugger.program.resize(*now)
            self.printer.live("")
        kept, self._kept = self._kept, ""
        if kept:
            *lines, self.begun = (self.begun + kept).split("\n")
            self.ahead += lines
        # As on a terminal shared by program and debugger: what the program did not read goes to the prompt.
        if debugger.state in (State.STOPPED, State.EXITED):
            *lines, self.begun = (self.begun + debugger.program.take_unread()).split("\n")
            self.ahead += lines

    def _free(self, until: threading.Event | None) -> bool:
        """A program that was found running has a terminal of its own: while no stop is waited for, or no more, the
        prompt is there."""
        debugger = self.debugger
        if debugger.program.attachment is None or debugger.state is not State.RUNNING:
            return False
        starting = until is not None and not debugger.settings.breakpoints
        return starting or debugger.run.quiet or self.interrupts.prompt_wanted.is_set()

    def _show_entering(self) -> None:
        rows = entering_rows(self.debugger, time.monotonic()) if self.debugger.entering else []
        self.printer.live(entering_summary(rows) if rows else "")

    def _type(self, keys: bytes) -> None:
        if self.debugger.program.attachment is not None:
            self._kept += keys.decode("utf-8", "ignore")  # it has a terminal of its own: for the next prompt
        elif keys:
            with contextlib.suppress(AdbgError):
                self.debugger.program.write_stdin(keys)

    def _typed_after(self) -> bytes:
        """What the prompt read together with the line that resumed the program."""
        if self._keyboard is None or not self.debugger.program.launched:
            return b""  # an attached program has a terminal of its own: the next prompt reads it
        from prompt_toolkit.input.typeahead import get_typeahead

        keys = "".join(key.data for key in get_typeahead(self._keyboard))
        # As bytes they would be signals to the program: a Ctrl-C means the debugger, and what follows it is dropped.
        keys, interrupt, _ = keys.partition("\x03")
        if interrupt:
            threading.Thread(target=self._interrupt, name="adbg-interrupt", daemon=True).start()
        return keys.replace("\x1a", "").replace("\x1c", "").encode()

    def _abandon(self) -> None:
        """The terminal is gone; the program, which has one of its own, continues."""
        self.printer.lost.set()
        self.leaving = True
        if self.debugger.alive:
            with contextlib.suppress(AdbgError):
                self.debugger.detach()

    @contextlib.contextmanager
    def _ctrl_c(self) -> Iterator[None]:
        """Ctrl-C is for ``Interrupts``."""

        def pressed(_number: int, _frame: FrameType | None) -> None:
            # On a thread: a handler runs between two bytecodes of the main thread, which may hold the debugger's lock.
            threading.Thread(target=self._interrupt, name="adbg-interrupt", daemon=True).start()

        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self) -> None:
        try:
            self.printer.say(self.interrupts.press(), DIM)
        except AdbgError as error:
            self.printer.say(str(error), RED)
