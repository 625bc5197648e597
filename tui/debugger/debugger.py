"""The debugger behind every front end: it starts the program, lets it run and stop, and owns the parts that know the
rest.

========================  ==============================================================================
``debugger.model``        the state, the processes, ``run`` (this start of the program); brings the events
``debugger.settings``     breakpoints and whatever else is the same in every process
``debugger.displays``     expressions shown at every stop
``debugger.view``         questions to the current process; ``process.view`` to any other one
``debugger.program``      the program as a whole: signals, its terminal, its run directory
``debugger.incoming``     turns what agents report into changes of the model
========================  ==============================================================================

Threads: every public method may be called from any thread, except from a listener callback when it waits for an
    answer. Locks: see ``model``. The model is changed before its event is delivered, so a listener that looks at
    ``state`` sees the present, not the moment of the event.

A session, as a front end drives it::

    debugger = Debugger(StartedProgram(script))
    debugger.model.subscribe(on_event)
    debugger.start()                     # the program's process exists; the script waits
    debugger.model.wait_ready(30)        # its agent is there: commands act
    debugger.settings.add_breakpoint("Mm*")
    debugger.begin()                     # the script runs; Stopped(...) comes, or Exited(code)
    debugger.resume(protocol.StepIn())
    debugger.close()

``startup`` in ``tui/commands/startup.py`` does this with the command line's ``-b``/``-e``/``-x``.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import NodeStop
from adbg.tui.debugger import events
from adbg.tui.debugger.displays import DisplayList
from adbg.tui.debugger.incoming import Incoming
from adbg.tui.debugger.job.quiet import tell_when_quiet
from adbg.tui.debugger.job.ranks import Ranks
from adbg.tui.debugger.job.stop_all import StopAll
from adbg.tui.debugger.model import Model, Run, State
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.program import Program
from adbg.tui.debugger.settings import Settings
from adbg.tui.debugger.stop_view import StopView
from adbg.tui.text.formatting import stop_title

__all__ = ["Debugger", "State"]

LINGER = 0.5  # seconds a stepped process is waited for before another one's queued stop is shown


class Debugger:
    """See the module. ``startup`` are command lines that a front end runs first (``-b``, ``-e``, ``-x`` in order)."""

    def __init__(self, program: Program, startup: Sequence[str] = (), title: str = "", entry: bool = False) -> None:
        self.program = program
        self.startup = list(startup)
        self.title = title
        self.entry = entry  # a start without breakpoints stops where the first backward begins
        self.model = Model()
        self.model.restartable = program.launched
        self.settings = Settings(self.model, entry)
        self.displays = DisplayList(self.model)
        self.ranks = Ranks(self.model)
        self.stop_all = StopAll(self.model, self.ranks, lambda: self.settings.can_stop)
        self.settings.before_change = self.stop_all.renew_timeouts
        self.ranks.each_round = self.stop_all.renew_timeouts
        self.incoming = Incoming(self.model, self.settings, program, self.ranks, self.stop_all)
        self.findings = self.incoming.findings
        self._let_go = False

    # ------------------------------------------------------------------ where it stands

    @property
    def state(self) -> State:
        return self.model.state

    @property
    def alive(self) -> bool:
        return self.model.alive

    @property
    def run(self) -> Run:
        """The present start of the program."""
        return self.model.run

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that are connected."""
        return self.model.processes

    @property
    def current(self) -> Process | None:
        """The process that commands act on: the one that stopped last, or was chosen by ``select_process``."""
        return self.model.run.current

    @property
    def view(self) -> StopView:
        """Questions to the current process. Raises NotStopped when no process is connected."""
        return self.model.view

    @property
    def stop(self) -> NodeStop | None:
        """Where the current process stands; None while it runs."""
        process = self.current
        return process.stop if process is not None else None

    # ------------------------------------------------------------------ life of the program

    def start(self) -> None:
        """Start (or find) the program. The script itself waits for ``begin``.

        Raises:
            AdbgError: it cannot be started or found.
        """
        model = self.model
        with model.changed:
            if self.alive:
                raise CommandError("the program is already running", "`restart` ends it and starts it again")
            run = model.run = Run(model.run.number + 1)
            self.settings.list.forget_hits()
            self.stop_all.forget()
            model.set_state(State.STARTING)
        try:
            self.incoming.listen(run)
        except BaseException:
            with model.changed:
                model.set_state(State.NEW)
            raise

    def begin(self, stop_on_entry: bool | None = None) -> None:
        """Let the script run, with the breakpoints set so far. ``stop_on_entry``: stop where the first backward
        begins."""
        with self.model.changed:
            if self.run.begun:
                raise CommandError("the script is already running", "`pause` stops it at the next node")
            if self.state is not State.STARTING:
                raise NotStopped("there is no program to run", "`restart` starts it again")
            self.run.begun = True
            if stop_on_entry is not None:
                self.settings.stop_at_entry = stop_on_entry
            waiting = self.processes
            self.model.set_state(State.RUNNING)
        self.model.tell(events.Started())
        for process in waiting:
            self.incoming.configure(process)

    def await_agent(self, seconds: float) -> bool:
        """Wait until the first agent is connected or the program ended, of a job that was found running all that do not
        keep the others waiting; false when ``seconds`` passed first.

        Raises:
            AdbgError: none will come, since the process that was found running cannot be entered.
        """
        attachment = self.program.attachment
        if self.model.wait_ready(seconds):
            if attachment is None or not attachment.gathering or not self.alive:
                return True
            time.sleep(min(seconds, 0.05))
            return False
        if attachment is not None and attachment.failure is not None:
            with self.model.changed:
                self.model.set_state(State.NEW)
            raise attachment.failure
        return False

    @property
    def entering(self) -> bool:
        """adbg is getting into a program that was found running, and in no process of it so far."""
        attachment = self.program.attachment
        return attachment is not None and not self.run.joined and bool(attachment.entering)

    def _not_running(self) -> CommandError:
        hint = "`restart` starts it again" if self.program.launched else "`adbg attach` lists programs"
        return CommandError("there is no running program", hint)

    def restart(self) -> None:
        """End the program and start it again; breakpoints, displays and watches stay. ``begin`` lets the script run."""
        if not self.program.launched:
            raise CommandError(
                "adbg did not start this program, so it cannot restart it", "start it anew, and attach to that"
            )
        if self.alive:
            self.kill("restart")
            if not self.model.wait_state(State.EXITED, State.DETACHED, timeout=15):
                raise AdbgError(
                    "the program did not end within 15 s of SIGKILL: it waits in the kernel", "`restart` again later"
                )
        self.start()

    def detach(self) -> None:
        """Disarm everything and let the program run on without the debugger. ``adbg run`` still waits for its end."""
        with self.model.changed:
            if not self.alive:
                raise self._not_running()
            self.run.begun = True
            processes = self.processes
            self.run.waiting.clear()
            for process in processes:
                process.resumed()
            self.model.set_state(State.DETACHED)
        if self.program.attachment is not None:
            self.program.attachment.stop_entering()
        for process in processes:
            with contextlib.suppress(AdbgError):
                if not process.configured:
                    process.client.request(protocol.ConfigurationDone(), 5)
                process.client.request(protocol.Disconnect(), 5)
            process.client.close()
        self.model.tell(events.Detached())

    def kill(self, ended_by: str = "kill") -> None:
        """End the program at once (SIGKILL to all of it). ``Exited`` follows, with ``ended_by``."""
        if self.state in (State.NEW, State.EXITED):
            raise self._not_running()
        self.run.ended_by = ended_by
        self.program.signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """SIGINT to the program, as Ctrl-C in its own terminal would."""
        self.program.signal(signal.SIGINT)

    def let_go(self) -> None:
        """From now on ``close`` leaves the program alone, as if adbg had been killed: its agent disarms itself when the
        connection ends, its keeper continues to record. Takes no lock: signal handlers call it."""
        self._let_go = True

    def close(self) -> None:
        """The front end ends: a program that adbg started is ended too (unless ``let_go`` was called), an attached one
        is detached."""
        if self.alive and not self._let_go:
            with contextlib.suppress(AdbgError):
                if self.program.launched:
                    self.kill()
                    self.model.wait_state(State.EXITED, timeout=5)
                else:
                    self.detach()
        self.program.close()
        for process in self.processes:
            process.client.close()
        self.model.delivery.close()

    # ------------------------------------------------------------------ resume and pause

    def resume(self, arguments: Any) -> None:
        """Send a request that resumes (Continue, Next, StepIn, StepOut, After, Until) to the current process. Returns
        when the agent accepted it; ``Stopped`` or ``Exited`` follows. Before ``begin`` it lets the script run instead.

        Raises:
            NotStopped: the program runs; CommandError: the agent refused (invalid spec of ``until``).
        """
        model = self.model
        if not self.run.begun and self.state is State.STARTING:
            if isinstance(arguments, protocol.Until):
                self.settings.add_breakpoint(arguments.spec, temporary=True)
            self.begin(not isinstance(arguments, (protocol.Continue, protocol.Until)))
            return
        with model.changed:
            process, stop = self.current, self.stop
            if process is not None and isinstance(arguments, protocol.Continue) and self.stop_all.holds(process):
                # A stop at a breakpoint that was deleted meanwhile is not shown: that rank goes on with the others.
                self.run.waiting[:] = [each for each in self.run.waiting if not self._is_over(each)]
                if self.model.waiting:  # their stops come first: nobody moves before they were seen
                    model.show_next()
                    return
                gone = self.stop_all.release()
                for other in gone:
                    model.tell(events.Resumed(other))
                if stop is None and gone:
                    self.stop_all.went_on()
                    return
            if process is None or stop is None:
                if self.state is State.RUNNING:
                    raise NotStopped("the program is running", "`pause` stops it at the next node")
                raise model.absent()
            serial, stack = process.stop_serial, process.view.stack
            process.resumed()
            self.run.quiet = False
            model.set_state(State.RUNNING)
            if isinstance(arguments, protocol.Continue):
                self.stop_all.went_on()
        try:
            process.client.request(arguments)
        except AdbgError:
            with model.changed:
                if process.alive and process.stop_serial == serial and self.state is State.RUNNING:
                    process.stop, process.view.stack = stop, stack
                    model.set_state(State.STOPPED)
            raise
        model.tell(events.Resumed(process))
        self._after_resume(isinstance(arguments, protocol.Continue))

    def _is_over(self, process: Process) -> bool:
        numbers = process.stop.breakpoints if process.stop is not None else ()
        return bool(numbers) and self.settings.removed.issuperset(numbers)

    def resume_all(self) -> None:
        """``continue all``: the current process and those whose stops were waiting to be shown."""
        with self.model.changed:
            others = list(self.run.waiting)
            self.run.waiting.clear()
            unseen = [(process, process.stop) for process in others]
            together = self.current is not None and self.stop_all.holds(self.current)
            for process in () if together else others:
                process.resumed()
        for process, stop in unseen:
            if stop is not None:
                self.model.notice("info", f"{process.title} goes on from a stop not shown: {stop_title(stop)}")
            if together:
                continue  # with the others
            with contextlib.suppress(DebuggeeGone):
                process.client.request(protocol.Continue())
                self.model.tell(events.Resumed(process))
        if self.stop is not None or not others:
            self.resume(protocol.Continue())

    def pause(self) -> None:
        """Stop every running process at its next node. One that was found running is let go first: it has waited for
        the front end's first commands only."""
        if self.entering and not self.processes:
            raise NotStopped("adbg is not in the program yet, so it cannot be paused", "`pause` again once it is in")
        if self.state is State.STARTING and not self.program.launched and not self.run.begun:
            self.begin(False)
        if self.state is State.STOPPED:
            raise CommandError("the program is already stopped", "`continue` lets it go on")
        if self.state is not State.RUNNING:
            raise NotStopped("the program is not running", "`run` starts it")
        self.run.quiet = False
        with self.model.changed:
            for process in self.processes:
                if process.stop is None:
                    process.pause_wanted, process.let_go = True, False
            self.stop_all.renew_timeouts()
            for process in self.processes:
                if process.stop is None:
                    process.client.send(protocol.Pause())
        tell_when_quiet(self.model)

    def _after_resume(self, continued: bool) -> None:
        """Show the next queued stop: at once after ``continue``; a stepped process is given a moment to stop again
        first."""
        if not self.model.waiting and not (continued and self.stop_all.standing()):
            return
        if continued:
            self._show_waiting()
        else:
            timer = threading.Timer(LINGER, self._show_waiting)
            timer.daemon = True
            timer.start()

    def _show_waiting(self) -> None:
        with self.model.changed:
            if self.state is not State.RUNNING:
                return
            standing = self.stop_all.standing()
            if self.model.waiting or not standing:
                self.model.show_next()
            else:  # a process that is no rank went on: the ranks stand until they are let go
                self.model.make_current(standing[0])

    def select_process(self, number: int) -> Process:
        """Make another process the current one; it need not be stopped."""
        with self.model.changed:
            run = self.run
            for process in self.processes:
                if process.number == number:
                    old = run.current
                    seen = old is not None and self.stop_all.holds(old)  # and it stands until all go on
                    if old is not None and old is not process and old.stop is not None and not seen:
                        run.waiting.insert(0, old)
                    if process in run.waiting:
                        run.waiting.remove(process)
                    self.model.make_current(process, asked=True)
                    return process
        have = ", ".join(str(p.number) for p in self.processes) or "none"
        raise CommandError(f"no process {number}", f"processes: {have}")

    # ------------------------------------------------------------------ what panels show

    @property
    def selected(self) -> int:
        """The node that panels show; 0 for the one of the stop."""
        process = self.current
        return process.view.selected if process is not None else 0

    def select_node(self, index: int) -> None:
        process = self.current
        if process is not None:
            process.view.selected = index
            self.model.tell(events.SelectionChanged(index))

    def tell_edited(self) -> None:
        """A gradient or a variable was changed: displays and panels are read again."""
        self.displays.forget()
        self.model.tell(events.Edited())

    def tell_marked(self) -> None:
        """A region was captured: panels read the graph again."""
        self.model.tell(events.GraphMarked())
