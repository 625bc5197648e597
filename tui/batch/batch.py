"""Batch mode: commands in order, a report of every stop, the program's exit status. Text or JSON lines (cli.md).

One loop on the main thread takes the debugger's events from a queue, so that stops, output and results come out in
the order in which they happened. Signals to adbg are handed to the program.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
import traceback

from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone
from adbg.engine.protocol.messages import Continue
from adbg.engine.types import ExitStatus, NodeStop
from adbg.tui.batch.writers import Writer
from adbg.tui.commands.startup import READY_TIMEOUT, stop_commands
from adbg.tui.commands.table import execute
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.end_notes import end_notes
from adbg.tui.debugger.reports import entering_rows
from adbg.tui.debugger.signals import handed_on, letting_go
from adbg.tui.text.attach import entering_summary

TIMED_OUT = 124
FAILED = 125
USAGE = 2
FAILED_ON = 3
WRITTEN = 35.0  # seconds that a profile which is being written is waited for at the end
IDLE = 0.1  # seconds without an event after which a half line of output is passed on
ENTERING_AGAIN = 10.0  # seconds after which it is said again that a process is waited for
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
LETTING_GO = ("SIGINT", "SIGTERM", "SIGHUP")


class TimedOut(Exception):
    """``--timeout`` passed."""


class Batch:
    """One run. ``required`` command lines (``-b``) end the run with status 2 when they are refused; with ``strict`` any
    that is refused, and a ``-b`` that matched no node, makes a status of 0 a 2. ``failing`` are those of ``required``
    that make the status 3, whatever the program's own is, when their breakpoint is hit (``--fail-on``)."""

    def __init__(
        self,
        debugger: Debugger,
        writer: Writer,
        timeout: float | None = None,
        required: frozenset[int] = frozenset(),
        strict: bool = False,
        failing: frozenset[int] = frozenset(),
    ) -> None:
        self.debugger = debugger
        self.writer = writer
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.timeout = timeout
        self.required = required
        self.strict = strict
        self.failing = failing
        self._fatal: set[int] = set()  # breakpoints of ``failing``
        self._hit: set[int] = set()  # of them, those that were hit
        self._asked: set[int] = set()  # breakpoints of ``required``
        self.refused = False  # a command was
        self.queue: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self._ended = 0  # the start of the program whose end was seen last
        self.reported: NodeStop | None = None  # the stop reported last
        self._quit = False
        self._profiles = 0  # ends of profiles that were reported
        self._joined = False  # a process did, and that was reported
        self.shown: set[int] = set()  # breakpoints whose hit was reported

    @property
    def ended(self) -> bool:
        """The end of the program was seen, and it was not restarted since."""
        return self._ended == self.debugger.run.number

    def run(self) -> int:
        """The whole run; returns adbg's exit status.

        Raises:
            AdbgError: the program cannot be started.
        """
        self.debugger.model.subscribe(self.queue.put)
        self.debugger.start()
        try:
            # In scripts and jobs `adbg run` stands for the program; a program that is attached to has its own life.
            launched = self.debugger.program.launched
            with handed_on(self.debugger, FORWARDED) if launched else letting_go(self.debugger, LETTING_GO):
                status = self._follow()
            return self._judged(status)
        except TimedOut:
            return self._give_up()
        except AdbgError:
            raise
        except Exception as error:
            if os.environ.get("ADBG_TRACEBACK"):
                traceback.print_exc()
            return self._let_run(error)
        finally:
            self.debugger.close()
            self.writer.flush()

    def _judged(self, status: int) -> int:
        if self._hit and status != TIMED_OUT:
            return FAILED_ON
        if not self.strict or status:
            return status
        unmatched = any(row.id in self._asked and row.met is False for row in self.debugger.settings.breakpoints)
        return USAGE if self.refused or unmatched else status

    def _let_run(self, error: Exception) -> int:
        """A defect of adbg's own is no reason to end the program: it runs on to its end, undebugged."""
        said = f"adbg itself failed: {type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            self.writer.notice("error", f"{said}; the program runs on without it (ADBG_TRACEBACK=1 shows where)")
        with contextlib.suppress(AdbgError):
            self.debugger.detach()
        while self.debugger.program.launched and not self.ended:
            event = self.queue.get()
            if isinstance(event, events.Exited):
                self._ended = event.run
            elif isinstance(event, events.Output):
                with contextlib.suppress(Exception):
                    self.writer.output(event)
        return FAILED

    def _follow(self) -> int:
        self._wait_ready()
        for number, line in enumerate(self.debugger.startup):
            if self.ended and self.debugger.state is not State.EXITED:
                break
            self._drain()
            if number in self.required:
                if not self._set_breakpoint(line, number in self.failing):
                    return USAGE
                continue
            self._command(line)
            if self._quit:
                return self._leave()
        if self._only_watches:
            self._wait_stop()
        return self._run_out()

    @property
    def _only_watches(self) -> bool:
        """``attach -b SPEC`` without a command: the first stop is the answer, then the program is let go."""
        found = self.debugger.program.attachment is not None
        return found and bool(self._asked) and len(self.debugger.startup) == len(self.required)

    # ------------------------------------------------------------------ commands

    def _set_breakpoint(self, line: str, fatal: bool) -> bool:
        """A ``-b``, or a ``--fail-on`` (fatal); false when it is a bad one."""
        if self.debugger.state is State.EXITED:
            hint = "give it before the -e that lets the program run"
            self._refuse(line, CommandError("the program had ended before this breakpoint was set", hint))
            return True
        try:
            result = execute(self.debugger, line)
        except DebuggeeGone:
            self._drain(0.5)
            return True  # the program ended before it could be asked
        except AdbgError as error:
            self._drain()
            self.writer.refused(line, error)
            return False
        self._drain()
        self.writer.accepted(line, result)
        number = result.value.get("id", 0) if isinstance(result.value, dict) else 0
        self._asked.add(number)
        if fatal:
            self._fatal.add(number)
        return True

    def _command(self, line: str) -> None:
        """Run one line, and wait for the program where it was set going."""
        try:
            result = execute(self.debugger, line)
        except DebuggeeGone as error:
            self._drain(0.5)  # its end explains it
            self._refuse(line, error)
            return
        except AdbgError as error:
            self._drain()
            self._refuse(line, error)
            return
        self._drain()
        if result.text or result.value is not None or result.rows:
            self.writer.result(line, result)
        self._quit = result.quit
        if result.running and not result.background:
            self._wait_stop()

    def _refuse(self, line: str, error: AdbgError) -> None:
        self.refused = True
        self.writer.error(line, error)

    def _wait_ready(self) -> None:
        program = self.debugger.program
        if program.detached_start:
            return  # a launcher: its Python children come when they come
        limit, told = time.monotonic() + READY_TIMEOUT, float("-inf")
        while not self.ended and not (self.debugger.await_agent(0) and self._told_of_joining()):
            if self.debugger.entering:
                limit = time.monotonic() + READY_TIMEOUT
                told = self._say_entering(told)
            if time.monotonic() > limit:
                self.writer.notice(
                    "warning", f"no agent came up within {READY_TIMEOUT:g} s; the program runs unwatched"
                )
                return
            self._take(0.05)

    def _told_of_joining(self) -> bool:
        """What is known of a process that was found running has been reported: it may not stop for hours, and the
        commands may be none."""
        return self._joined or self.debugger.program.attachment is None

    def _say_entering(self, told: float) -> float:
        """Once a process has been waited for a moment, and then now and again; the time when it was said last."""
        now = time.monotonic()
        rows = entering_rows(self.debugger, now)
        if now - told < ENTERING_AGAIN or not any(queued and seconds >= 1 for _, queued, _, seconds in rows):
            return told
        self.writer.notice("info", entering_summary(rows))
        return now

    def _wait_stop(self) -> None:
        """Until the program stands still and that was reported, or it ended or was let go, or runs on where a stop was
        asked for: that was told."""
        while not self.ended and not self._stands() and self.debugger.state is not State.DETACHED:
            if self.debugger.run.quiet and self._take(0) is None:
                return
            self._take(0.2)

    def _stands(self) -> bool:
        return self.debugger.state is State.STOPPED and self.reported is self.debugger.stop

    def _at_stop(self, event: events.Stopped) -> None:
        """Report a stop and run the commands of its breakpoints, up to the one that sets the program going again."""
        self.reported = event.stop
        self.writer.stopped(self.debugger, event)
        self.shown.update(event.stop.breakpoints)
        self._hit |= self._fatal & set(event.stop.breakpoints)
        for line in stop_commands(self.debugger):
            try:
                result = execute(self.debugger, line)
            except AdbgError as error:
                self._refuse(line, error)
                continue
            if result.text or result.value is not None:
                self.writer.result(line, result)
            self._quit = self._quit or result.quit
            if result.running or result.quit:
                return

    # ------------------------------------------------------------------ the rest of the run

    def _run_out(self) -> int:
        """The commands are used up: the script runs on to its end. A breakpoint that was not hit so far is reported
        once."""
        debugger = self.debugger
        if debugger.state is State.STARTING and not self.ended:
            debugger.begin(False)
        while not self.ended:
            if self._stands():
                self._go_on()
            if debugger.state is State.RUNNING and not debugger.program.launched:
                if self._measures:
                    self._take(0.2)
                    continue
                debugger.detach()
                return 0
            self._wait_stop()
            if self._quit:
                return self._leave()
            if debugger.state is State.DETACHED:
                if not debugger.program.launched:
                    return 0
                self._take(0.2)
        limit = time.monotonic() + WRITTEN
        while self._measures and time.monotonic() < limit:
            self._take(0.1)
        return self._finish()

    @property
    def _measures(self) -> bool:
        """A profile waits for its region, runs, or is being written."""
        return self._profiles < self.debugger.incoming.profiles.begun

    def _go_on(self) -> None:
        for row in self.debugger.settings.breakpoints:
            if row.enabled and row.id in self.shown and not row.commands:
                with contextlib.suppress(AdbgError):
                    self.debugger.settings.change_breakpoint(row.id, enabled=False)
        try:
            self.debugger.resume(Continue())
        except DebuggeeGone:
            self._drain(0.5)

    def _leave(self) -> int:
        """``quit``: the program is ended, as in every front end; its status is not the run's."""
        self.debugger.close()
        return 0

    def _finish(self) -> int:
        for note in end_notes(self.debugger):
            self.writer.notice("warning", note)
        status = self.debugger.run.exit or ExitStatus(0)
        self.writer.exited(status, failed_on=sorted(self._hit))
        return status.status

    def _give_up(self) -> int:
        self.deadline = None
        if not self.debugger.program.launched:
            said = f"--timeout {self.timeout:g} s passed: adbg lets go of the program, which runs on"
            self.writer.notice("error", said)
            return TIMED_OUT  # closing detaches
        self.writer.notice("error", f"the program ran longer than --timeout {self.timeout:g} s and is killed")
        with contextlib.suppress(AdbgError):
            self.debugger.kill()
        limit = time.monotonic() + 5
        while not self.ended and time.monotonic() < limit:
            self._take(0.2)
        if self.ended:
            self.writer.exited(self.debugger.run.exit or ExitStatus(0), by_timeout=True)
        return TIMED_OUT

    # ------------------------------------------------------------------ events

    def _take(self, seconds: float) -> events.Event | None:
        """Handle the next event, waiting at most ``seconds`` for it."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TimedOut
        try:
            event = self.queue.get(timeout=min(seconds, IDLE))
        except queue.Empty:
            self.writer.flush()
            return None
        self._report(event)
        return event

    def _drain(self, seconds: float = 0.0) -> None:
        """Handle what is there already, or comes within ``seconds``."""
        limit = time.monotonic() + seconds
        while True:
            try:
                event = (
                    self.queue.get(timeout=max(0.0, limit - time.monotonic())) if seconds else self.queue.get_nowait()
                )
            except queue.Empty:
                return
            self._report(event)

    def _report(self, event: events.Event) -> None:
        writer = self.writer
        if isinstance(event, events.Output):
            writer.output(event)
        elif isinstance(event, events.BackwardBegan):
            writer.backward_began(event)
        elif isinstance(event, events.BackwardEnded):
            writer.backward_ended(event)
        elif isinstance(event, events.Trace):
            writer.trace(event)
        elif isinstance(event, events.Notice):
            writer.notice(event.level, event.text)
        elif isinstance(event, events.ProfileEnded):
            self._profiles += 1
            writer.profile_ended(event)
        elif isinstance(event, events.MemoryGrows):
            writer.memory_grows(event)
        elif isinstance(event, events.Found):
            writer.found(event)
        elif isinstance(event, events.ProcessJoined):
            self._joined = True
        elif isinstance(event, events.Stopped):
            if event.stop is self.debugger.stop:  # not one in the middle of `step 5`, which went on from there
                self._at_stop(event)
        elif isinstance(event, events.Exited):
            self._ended = event.run
