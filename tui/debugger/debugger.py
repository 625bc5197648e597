"""The one model behind every front end: the program, its processes, where they stand, the breakpoints, what is shown.

Threads: every public method may be called from any thread, except from a listener callback when it waits for an
    answer. Events (``tui/events.py``) are delivered in order on one daemon thread, "adbg-events". The model is
    changed before its event is delivered, so a listener that looks at ``state`` sees the present, not the moment of
    the event.

A session, as a front end drives it::

    debugger = Debugger(StartedProgram(script))
    debugger.subscribe(on_event)
    debugger.start()                     # the program's process exists; the script waits
    debugger.wait_ready(30)              # its agent is there: commands act
    debugger.add_breakpoint("Mm*")
    debugger.begin()                     # the script runs; Stopped(...) comes, or Exited(code)
    debugger.resume(protocol.StepIn())
    debugger.quit()

``startup`` in ``tui/commands/startup.py`` does this with the command line's ``-b``/``-e``/``-x``.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from typing import Any

from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger import events
from adbg.tui.debugger.displays import ShownList
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.program import Program
from adbg.tui.debugger.settings import MirroredBreakpoints
from adbg.tui.debugger.state import State
from adbg.tui.debugger.stop_view import Shown

__all__ = ["Debugger", "State"]

LINGER = 0.5  # seconds a stepped process is waited for before another one's queued stop is shown


class Debugger(MirroredBreakpoints):
    """See the module. ``startup`` are command lines that a front end runs first (``-b``, ``-e``, ``-x`` in order)."""

    def __init__(self, program: Program, startup: Sequence[str] = (), title: str = "", entry: bool = False) -> None:
        super().__init__(program, startup, title, entry)
        self.shown = ShownList(self)
        self._let_go = False

    # ------------------------------------------------------------------ life of the program

    def start(self) -> None:
        """Start (or find) the program. The script itself waits for ``begin``.

        Raises:
            AdbgError: it cannot be started or found.
        """
        with self.changed:
            if self.alive:
                raise CommandError("the program runs already", "`restart` ends it and starts anew")
            self._generation += 1
            self._reset()
            self._set_state(State.STARTING)
            generation = self._generation
        try:
            self.program.start(
                lambda client, info: self._joined(client, info, generation),
                lambda stream, data: self._output(stream, data, generation),
                lambda status: self._ended(status, generation),
                lambda text: self.notice("warning", text),
            )
        except BaseException:
            with self.changed:
                self._set_state(State.NEW)
            raise

    def begin(self, stop_on_entry: bool | None = None) -> None:
        """Let the script go, with the breakpoints set so far. ``stop_on_entry``: stop where the first backward
        begins."""
        with self.changed:
            if self._begun:
                raise CommandError("the script runs already")
            if self._state is not State.STARTING:
                raise NotStopped("there is no program to run", "`restart` starts it anew")
            self._begun = True
            self.stop_at_entry = self.stop_at_entry if stop_on_entry is None else stop_on_entry
            waiting = [p for p in self._processes if p.alive]
            self._set_state(State.RUNNING)
        self._tell(events.Started())
        for process in waiting:
            self._configure(process)

    def restart(self) -> None:
        """End the program and start it anew; breakpoints, displays and watches stay. ``begin`` lets it go."""
        if not self.program.launched:
            raise CommandError("adbg did not start this program, so it cannot restart it")
        if self.alive:
            self.kill("restart")
            if not self.wait_state(State.EXITED, State.DETACHED, timeout=15):
                raise AdbgError("the program did not end within 15 s of SIGKILL")
        self.start()

    def detach(self) -> None:
        """Disarm everything and let the program run on without the debugger. ``adbg run`` still waits for its end."""
        with self.changed:
            if not self.alive:
                raise CommandError("there is no running program")
            if not self._begun:
                self._begun = True
            processes = [p for p in self._processes if p.alive]
            self._waiting.clear()
            for process in processes:
                process.resumed()
            self._set_state(State.DETACHED)
        for process in processes:
            with contextlib.suppress(AdbgError):
                if not process.configured:
                    process.client.request(protocol.ConfigurationDone(), 5)
                process.client.request(protocol.Disconnect(), 5)
            process.client.close()
        self._tell(events.Detached())

    def kill(self, ended_by: str = "kill") -> None:
        """End the program at once (SIGKILL to all of it). ``Exited`` follows, with ``ended_by``."""
        if self._state in (State.NEW, State.EXITED):
            raise CommandError("there is no running program")
        self.ended_by = ended_by
        self.program.signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """SIGINT to the program, as Ctrl-C in its own terminal would."""
        self.send_signal(signal.SIGINT)

    def send_signal(self, signum: int) -> None:
        self.program.signal(signum)

    @property
    def command(self) -> Sequence[str]:
        """argv of the program that adbg started; () of an attached one."""
        script = getattr(self.program, "script", None)
        return script.command if script is not None else ()

    def write_stdin(self, data: bytes) -> None:
        """Type at the program's terminal."""
        self.program.write_stdin(data)

    def resize(self, rows: int, cols: int) -> None:
        """Size of the program's terminal in character cells."""
        self.program.resize(rows, cols)

    def let_go(self) -> None:
        """From now on the front end's end is not the program's: ``close`` leaves it alone, as if adbg had been killed.
        Its agent disarms itself when it hears no more of us, its keeper goes on recording. Takes no lock: signal
        handlers call it."""
        self._let_go = True

    def close(self) -> None:
        """The front end leaves: a program that adbg started and still has in hand is ended (see ``let_go``), an
        attached one is detached."""
        if self.alive and not self._let_go:
            with contextlib.suppress(AdbgError):
                if self.program.launched:
                    self.kill()
                    self.wait_state(State.EXITED, timeout=5)
                else:
                    self.detach()
        self.program.close()
        for process in self.processes:
            process.client.close()
        self._queue.put(None)
        if threading.current_thread() is not self._pump:
            self._pump.join(2)

    # ------------------------------------------------------------------ going on

    def resume(self, arguments: Any) -> None:
        """Send one of the going-on requests (Continue, Next, StepIn, StepOut, After, Until) to the current process.
        Returns when the agent took it; ``Stopped`` or ``Exited`` tells the rest. Before ``begin`` it lets the
        script go instead.

        Raises:
            NotStopped: the program runs; CommandError: the agent refused (bad spec of ``until``).
        """
        if not self._begun and self._state is State.STARTING:
            if isinstance(arguments, protocol.Until):
                self.add_breakpoint(arguments.spec, temporary=True)
            self.begin(not isinstance(arguments, (protocol.Continue, protocol.Until)))
            return
        with self.changed:
            process, stop = self._current, self.stop
            if process is None or stop is None:
                self._refuse_resume()
                return
            serial, frames, frame = process.stop_serial, process.frames, process.frame
            process.resumed()
            self._set_state(State.RUNNING)
        try:
            process.client.request(arguments)
        except AdbgError:
            with self.changed:
                if process.alive and process.stop_serial == serial and self._state is State.RUNNING:
                    process.stop, process.frames, process.frame = stop, frames, frame
                    self._set_state(State.STOPPED)
            raise
        self._tell(events.Resumed(process))
        self._after_resume(isinstance(arguments, protocol.Continue))

    def pause(self) -> None:
        """Stop every running process at its next node."""
        if self._state is State.STOPPED:
            raise CommandError("the program is stopped already")
        if self._state is not State.RUNNING:
            raise NotStopped("the program does not run", "`run` lets the script go")
        for process in self.processes:
            if process.stop is None:
                process.client.send(protocol.Pause())

    def _refuse_resume(self) -> None:
        if self._state is State.EXITED:
            raise NotStopped("the program has ended", "`restart` starts it anew")
        if self._state is State.DETACHED:
            raise NotStopped("the debugger is detached from the program", "`restart` starts it anew")
        raise NotStopped("the program is running", "`pause` stops it at the next node")

    def _after_resume(self, continued: bool) -> None:
        """Show the next queued stop: at once after ``continue``; a stepped process is given a moment to stop again
        first."""
        with self.lock:
            if not self._waiting:
                return
        if continued:
            self._show_waiting()
        else:
            timer = threading.Timer(LINGER, self._show_waiting)
            timer.daemon = True
            timer.start()

    def _show_waiting(self) -> None:
        with self.changed:
            if self._state is not State.RUNNING or not self._waiting:
                return
            self._make_current(self._waiting.pop(0))

    def select_process(self, number: int) -> Process:
        """Make another process the current one; it need not be stopped."""
        with self.changed:
            for process in self._processes:
                if process.number == number and process.alive:
                    old = self._current
                    if old is not None and old is not process and old.stop is not None:
                        self._waiting.insert(0, old)
                    if process in self._waiting:
                        self._waiting.remove(process)
                    self._make_current(process)
                    return process
            have = ", ".join(str(p.number) for p in self._processes if p.alive) or "none"
        raise CommandError(f"no process {number}", f"processes: {have}")

    # ------------------------------------------------------------------ other settings and questions

    def request(self, arguments: Any, timeout: float = 30.0) -> Any:
        """Ask the current process. Raises what the agent answers, NotStopped when no process is connected."""
        process = self._current
        if process is None or not process.alive:
            if self._state is State.EXITED:
                raise NotStopped("the program has ended", "`restart` starts it anew")
            if self._state is State.STARTING:
                raise NotStopped("the program has not started yet", "`run` lets it go")
            raise NotStopped("no process of the program is connected")
        return process.client.request(arguments, timeout)

    def select_node(self, index: int) -> None:
        """The node that panels show; 0 follows the stop."""
        self.selected = index
        self._tell(events.SelectionChanged(index))

    def tell_frame(self, index: int) -> None:
        self._tell(events.FrameChanged(index))

    def tell_edited(self) -> None:
        """A gradient or a variable was changed: panels read again."""
        self._tell(events.Edited())

    def tell_marked(self) -> None:
        """A region was captured: panels read the graph again."""
        self._tell(events.GraphMarked())

    def tell_shown(self) -> None:
        self._tell(events.ShownChanged())

    def shown_values(self) -> tuple[Shown, ...]:
        """Displays and watches evaluated at this stop (once per stop; again after an edit)."""
        return self.shown.values()
