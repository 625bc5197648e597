"""The one model behind every front end: the program, its processes, where they stand, the breakpoints, what is shown.

Threads: every public method may be called from any thread, except from a listener callback when it waits for an answer. Events
(``tui/events.py``) are delivered in order on one daemon thread, "adbg-events". The model is changed before its event is delivered, so a
listener that looks at ``state`` sees the present, not the moment of the event.

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

import codecs
import contextlib
import enum
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from adbg.engine import protocol
from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone, NotStopped
from adbg.engine.protocol import ProcessInfo
from adbg.engine.types import NodeStop
from adbg.tui import events
from adbg.tui.breakpoint_list import Breakpoint, BreakpointList
from adbg.tui.client import Client, initialize
from adbg.tui.events import Event
from adbg.tui.processes import Process
from adbg.tui.program import Program
from adbg.tui.shown import ShownList
from adbg.tui.stop_view import Shown, StopView, as_error

TAIL = 4096
LINGER = 0.5  # seconds a stepped process is waited for before another one's queued stop is shown
Listener = Callable[[Event], None]


class State(str, enum.Enum):
    """Of the program as a whole."""

    NEW = "new"  # nothing was started
    STARTING = "starting"  # the process exists, the script waits for ``begin``
    RUNNING = "running"
    STOPPED = "stopped"  # ``current`` stands at ``stop``
    EXITED = "exited"  # ``exit_code`` is known
    DETACHED = "detached"  # it runs on without the debugger


class Debugger(StopView):
    """See the module. ``startup`` are command lines that a front end runs first (``-b``, ``-e``, ``-x`` in order)."""

    def __init__(self, program: Program, startup: Sequence[str] = (), title: str = "", entry: bool = False) -> None:
        self.program = program
        self.startup = list(startup)
        self.title = title
        self.stop_at_entry = entry  # what ``begin`` does unless told: a person wants to see something first
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # notified with every change of ``state`` or of the processes
        self._state = State.NEW
        self._current: Process | None = None
        self._processes: list[Process] = []
        self._waiting: list[Process] = []  # stopped, not looked at yet, in order of stopping
        self._begun = False
        self._generation = 0  # of the program: events of the one before a restart are dropped
        self._numbers = 0
        self.exit_code: int | None = None
        self.exit_text = ""
        self._list = BreakpointList()
        self._error_stops = True
        self._vlog = ""
        self.shown = ShownList(self)
        self.selected = 0  # node selected in a panel: its index, 0 follows the stop
        self.ever_stopped = False
        self.backwards_seen = 0
        self.frameworks_seen: set[str] = set()
        self.names_seen: set[str] = set()  # framework names of nodes, asked for when a breakpoint was not hit
        self.largest = 0  # nodes in the largest backward seen
        self.tail = ""  # the last TAIL characters that the program wrote
        self._listeners: list[Listener] = []
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._decoders: dict[str, Any] = {}
        self._pump = threading.Thread(target=self._deliver, name="adbg-events", daemon=True)
        self._pump.start()

    # ------------------------------------------------------------------ state

    @property
    def state(self) -> State:
        return self._state

    @property
    def current(self) -> Process | None:
        """The process that commands act on: the one that stopped last, or was chosen by ``select_process``."""
        return self._current

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that are connected."""
        with self.lock:
            return tuple(p for p in self._processes if p.alive)

    @property
    def joined(self) -> int:
        """How many processes ever connected since ``start``."""
        return self._numbers

    @property
    def waiting(self) -> tuple[Process, ...]:
        """Stopped processes that wait for their turn."""
        with self.lock:
            return tuple(self._waiting)

    @property
    def run_dir(self) -> str:
        """The run directory, "" when nothing is recorded."""
        return self.program.run_dir

    @property
    def begun(self) -> bool:
        """The script was let go."""
        return self._begun

    @property
    def alive(self) -> bool:
        return self._state in (State.STARTING, State.RUNNING, State.STOPPED)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Events from now on go to ``listener`` too; returns how to stop that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def notice(self, level: str, text: str) -> None:
        """Tell the person something, through whatever front end there is."""
        self._tell(events.Notice(level, text))

    def wait_state(self, *states: State, timeout: float | None = None) -> bool:
        """Until the state is one of ``states``; false when ``timeout`` seconds passed."""
        with self.changed:
            return self.changed.wait_for(lambda: self._state in states, timeout)

    def wait_ready(self, timeout: float = 30.0) -> bool:
        """Until the program's first agent is connected, or the program ended; false after ``timeout`` seconds."""

        def ready() -> bool:
            return bool(self._processes) or not self.alive

        with self.changed:
            return self.changed.wait_for(ready, timeout)

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
                lambda code, text: self._ended(code, text, generation),
                lambda text: self.notice("warning", text),
            )
        except BaseException:
            with self.changed:
                self._set_state(State.NEW)
            raise

    def begin(self, stop_on_entry: bool | None = None) -> None:
        """Let the script go, with the breakpoints set so far. ``stop_on_entry``: stop where the first backward begins."""
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
            self.kill()
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

    def kill(self) -> None:
        """End the program at once (SIGKILL to all of it). ``Exited`` follows."""
        if self._state in (State.NEW, State.EXITED):
            raise CommandError("there is no running program")
        self.program.signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """SIGINT to the program, as Ctrl-C in its own terminal would."""
        self.send_signal(signal.SIGINT)

    def send_signal(self, signum: int) -> None:
        self.program.signal(signum)

    def write_stdin(self, data: bytes) -> None:
        """Type at the program's terminal."""
        self.program.write_stdin(data)

    def resize(self, rows: int, cols: int) -> None:
        """Size of the program's terminal in character cells."""
        self.program.resize(rows, cols)

    def close(self) -> None:
        """The front end leaves: a program that adbg started and still has in hand is ended, an attached one is detached."""
        if self.alive:
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
        """Send one of the going-on requests (Continue, Next, StepIn, StepOut, After, Until) to the current process. Returns when
        the agent took it; ``Stopped`` or ``Exited`` tells the rest. Before ``begin`` it lets the script go instead.

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
        """Show the next queued stop: at once after ``continue``; a stepped process is given a moment to stop again first."""
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

    # ------------------------------------------------------------------ breakpoints

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        with self.lock:
            return self._list.rows()

    @property
    def error_stops(self) -> bool:
        """Whether an exception inside backward stops (it does unless switched off)."""
        return self._error_stops

    def breakpoint(self, number: int) -> Breakpoint:
        with self.lock:
            return self._list.get(number)

    def add_breakpoint(self, spec: str, temporary: bool = False, trace: bool = False) -> Breakpoint:
        """Raises CommandError for a bad spec (which is then not kept). One that matches nothing is kept and says so."""
        with self.lock:
            row = self._list.add(spec.strip(), temporary, trace)
        try:
            self._mirror()
        except AdbgError:
            self._drop(row.id)
            raise
        row = self.breakpoint(row.id)
        if not row.verified:
            self._drop(row.id)
            raise CommandError(row.message or f"bad breakpoint spec {spec!r}", "`help break` shows the grammar")
        return row

    def change_breakpoint(
        self,
        number: int,
        *,
        condition: str | None = None,
        ignore: int | None = None,
        enabled: bool | None = None,
        commands: tuple[str, ...] | None = None,
    ) -> Breakpoint:
        """``ignore`` further hits from now on; "" removes a condition. Raises CommandError: no such number, bad condition."""
        with self.lock:
            before = self._list.get(number)
            at = None if ignore is None else (before.hits + ignore + 1 if ignore > 0 else 0)
            self._list.change(number, condition=condition, ignore=at, enabled=enabled, commands=commands)
        self._mirror()
        row = self.breakpoint(number)
        if not row.verified:
            with self.lock:
                self._list.change(number, condition=before.condition, ignore=before.ignore, enabled=before.enabled)
            self._mirror()
            raise CommandError(row.message, "the breakpoint is unchanged")
        return row

    def remove_breakpoint(self, number: int) -> None:
        with self.lock:
            self._list.remove(number)
        self._mirror()

    def _drop(self, number: int) -> None:
        with contextlib.suppress(AdbgError):
            self.remove_breakpoint(number)

    def set_error_stops(self, on: bool) -> None:
        self._error_stops = on
        for process in self.processes:
            process.client.request(protocol.SetExceptionBreakpoints(["error"] if on else []))

    def _mirror(self) -> None:
        """The list to every process; what they say about it back into the list."""
        with self.lock:
            requests = self._list.requests()
        for process in self.processes:
            try:
                body: protocol.Breakpoints = process.client.request(protocol.SetFunctionBreakpoints(requests))
            except DebuggeeGone:
                continue
            with self.lock:
                self._list.learn(process.number, body.breakpoints)
        self._tell(events.BreakpointsChanged(self.breakpoints))

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

    def set_vlog(self, levels: str) -> protocol.VlogBody:
        """Levels for every process, also for those that join later. "" only asks."""
        if levels:
            self._vlog = ",".join(filter(None, (self._vlog, levels))) if "=" in levels else levels
        bodies = [p.client.request(protocol.Vlog(levels)) for p in self.processes]
        if not bodies:
            raise NotStopped("no process of the program is connected")
        body: protocol.VlogBody = bodies[0]
        return body

    def select_node(self, index: int) -> None:
        """The node that panels show; 0 follows the stop."""
        self.selected = index
        self._tell(events.SelectionChanged(index))

    def tell_frame(self, index: int) -> None:
        self._tell(events.FrameChanged(index))

    def tell_edited(self) -> None:
        """A gradient or a variable was changed: panels read again."""
        self._tell(events.Edited())

    def tell_shown(self) -> None:
        self._tell(events.ShownChanged())

    def shown_values(self) -> tuple[Shown, ...]:
        """Displays and watches evaluated at this stop (once per stop; again after an edit)."""
        return self.shown.values()

    # ------------------------------------------------------------------ what agents and the launcher report

    def _reset(self) -> None:
        self._processes, self._waiting, self._current = [], [], None
        self._begun = False
        self._numbers = 0
        self._graph_cache = None
        self.exit_code = None
        self.selected = 0
        self.backwards_seen = 0
        self.frameworks_seen = set()
        self.names_seen = set()
        self.largest = 0
        self._list.forget_hits()
        self._decoders = {}
        self.tail = ""

    def _joined(self, client: Client, info: ProcessInfo, generation: int) -> None:
        with self.changed:
            if generation != self._generation or not self.alive:
                client.close()
                return
            self._numbers += 1
            process = Process(self._numbers, client, info)
        client.start(
            lambda body: self._agent_event(process, body, generation), lambda reason: self._lost(process, reason, generation)
        )
        try:
            body = initialize(client, getattr(self.program, "token", ""), getattr(self.program, "stacks", None))
            self._adopt(process, body)
        except AdbgError as error:
            if not isinstance(error, DebuggeeGone):
                self.notice("error", f"process {info.pid} cannot be debugged: {error}")
            client.close()

    def _adopt(self, process: Process, body: protocol.InitializeBody) -> None:
        """Give a new process everything that the others have; it becomes current when it is the first."""
        if body.adbg is not None:
            process.info = body.adbg
            process.frameworks = tuple(body.adbg.frameworks)
        settings = None
        states = protocol.Breakpoints([])
        while True:  # what changes while it is being told is told again, before it counts as one of the processes
            with self.changed:
                now = (self._list.version, self._vlog, self._error_stops)
                if now == settings:
                    if not process.alive:
                        return
                    self._enter(process, states)
                    begun, stopped = self._begun, process.stop
                    break
                settings = now
                requests = self._list.requests()
            states = process.client.request(protocol.SetFunctionBreakpoints(requests))
            if not self._error_stops:
                process.client.request(protocol.SetExceptionBreakpoints([]))
            if self._vlog:
                process.client.request(protocol.Vlog(self._vlog))
        self._tell(events.ProcessJoined(process))
        if begun:
            self._configure(process)
        if stopped is not None:
            self._parked(process, stopped)

    def _enter(self, process: Process, states: protocol.Breakpoints) -> None:
        """Under the lock: from here on it is one of the processes."""
        self._processes.append(process)
        self._list.learn(process.number, states.breakpoints)
        self.frameworks_seen.update(f.name for f in process.frameworks)
        if self._current is None or not self._current.alive:
            self._current = process
        self.changed.notify_all()

    def _configure(self, process: Process) -> None:
        with self.lock:
            if process.configured:
                return
            process.configured = True
        try:
            process.client.request(protocol.ConfigurationDone(self.stop_at_entry and process.main))
        except DebuggeeGone:
            pass  # its end is told by the reader
        except AdbgError as error:
            self.notice("error", str(error))

    def _agent_event(self, process: Process, body: Any, generation: int) -> None:
        if generation != self._generation:
            return
        if isinstance(body, protocol.Stopped):
            if body.adbg is not None:
                with self.changed:
                    known = process in self._processes
                    process.stop = body.adbg
                if known:
                    self._parked(process, body.adbg)
        elif isinstance(body, protocol.NodesRan):
            self._tell(events.NodesRan(process, body.backward, tuple(body.nodes)))
        elif isinstance(body, protocol.BackwardBegin):
            process.backwards += 1
            self.backwards_seen += 1
            self.largest = max(self.largest, body.nodes)
            self._tell(events.BackwardBegan(process, body))
        elif isinstance(body, protocol.BackwardEnd):
            self._tell(events.BackwardEnded(process, body))
            self._learn_names(process)
        elif isinstance(body, protocol.Trace):
            self._tell(events.Trace(process, body.breakpoint, body.text, body.stop))
        elif isinstance(body, protocol.BreakpointChanged):
            self._breakpoint_changed(process, body)
        elif isinstance(body, protocol.ProcessChanged):
            process.info = body.process
        elif isinstance(body, protocol.FrameworkLoaded):
            process.frameworks = (*process.frameworks, body.framework)
            self.frameworks_seen.add(body.framework.name)
            self._tell(events.FrameworkFound(process, body.framework))
        elif isinstance(body, protocol.Output):
            self.notice("warning" if body.category == "important" else "info", body.output.rstrip("\n"))

    def _learn_names(self, process: Process) -> None:
        """After a process's first backward: the node names seen, for the closest ones to a breakpoint that is never hit. Not
        waited for: this is the reader thread."""
        if process.backwards != 1 or process.asked_names or not self._list.unhit():
            return
        process.asked_names = True

        def learn(answer: Future[Any]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                body: protocol.InfoBody = answer.result()
                self.names_seen.update(str(row[0]) for row in body.rows if row)

        with contextlib.suppress(AdbgError):
            process.client.send(protocol.Info("names")).add_done_callback(learn)

    def _parked(self, process: Process, stop: NodeStop) -> None:
        with self.changed:
            process.parked(stop)
            self.ever_stopped = True
            if self._state in (State.DETACHED, State.EXITED):
                return
            busy = self._state is State.STOPPED and self._current is not process
            if busy or (self._waiting and self._state is State.STOPPED):
                if process not in self._waiting:
                    self._waiting.append(process)
                self._tell(events.StopQueued(process, stop))
                return
            self._make_current(process)

    def _make_current(self, process: Process) -> None:
        """Under the lock."""
        self._current = process
        self.selected = 0
        if process.stop is not None:
            self._set_state(State.STOPPED)
            self._tell(events.Stopped(process, process.stop))
        else:
            self._set_state(State.RUNNING)

    def _breakpoint_changed(self, process: Process, body: protocol.BreakpointChanged) -> None:
        with self.lock:
            if body.reason == "removed":
                self._list.learn(process.number, [body.breakpoint])
                with contextlib.suppress(CommandError):
                    self._list.remove(body.breakpoint.id)
            elif not self._list.learn(process.number, [body.breakpoint]):
                return
            rows = self._list.rows()
        self._tell(events.BreakpointsChanged(rows))

    def _lost(self, process: Process, reason: str, generation: int) -> None:
        with self.changed:
            process.alive = False
            if generation != self._generation:
                return
            known = process in self._processes
            was_current = process is self._current
            process.resumed()
            self._list.forget_process(process.number)
            if process in self._waiting:
                self._waiting.remove(process)
            rest = [p for p in self._processes if p.alive]
            if was_current and rest:
                self._current = rest[0]
                if self._waiting:
                    self._make_current(self._waiting.pop(0))
                elif self._state is State.STOPPED:
                    self._set_state(State.RUNNING)
            elif was_current and self._state is State.STOPPED:
                self._set_state(State.RUNNING)
            self.changed.notify_all()
        if known:
            self._tell(events.ProcessLeft(process))
        if not self.program.launched and not rest and self._state is not State.DETACHED:
            self._ended(0, reason, generation)

    def _output(self, stream: str, data: bytes, generation: int) -> None:
        if generation != self._generation:
            return
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        self.tail = (self.tail + text)[-TAIL:]
        self._tell(events.Output(stream, text, data))

    def _ended(self, code: int, text: str, generation: int) -> None:
        """The program ended; what its agents still had to say is read first."""
        if generation != self._generation:
            return
        deadline = time.monotonic() + 2
        for process in self.processes:
            process.client.wait_end(max(0.0, deadline - time.monotonic()))
        with self.changed:
            if generation != self._generation or self._state is State.EXITED:
                return
            self.exit_code = code
            self.exit_text = text
            for process in self._processes:
                process.resumed()
            self._waiting.clear()
            self._set_state(State.EXITED)
        self._tell(events.Exited(code))

    # ------------------------------------------------------------------ delivery

    def _set_state(self, state: State) -> None:
        """Under the lock."""
        self._state = state
        self.changed.notify_all()

    def _tell(self, event: Event) -> None:
        self._queue.put(event)

    def _deliver(self) -> None:
        while True:
            event = self._queue.get()
            if event is None:
                return
            for listener in list(self._listeners):
                try:
                    listener(event)
                except Exception as error:  # one panel's defect must not silence the others
                    print_defect(as_error(error))


def print_defect(error: AdbgError) -> None:
    """Last resort for an error in a listener, where no front end can be asked."""
    import sys

    with contextlib.suppress(OSError, ValueError):
        print(f"adbg: {error}", file=sys.__stderr__)
