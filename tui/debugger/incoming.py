"""What agents and the launcher report, turned into the state of a ``Debugger`` and its events. Base of ``Debugger``.

Everything here runs on threads that are not the front end's: an agent joins on a thread of its own, its events come
on its client's reader thread, output and the end on the launcher's. None of them waits for an answer on a reader
thread.
"""

from __future__ import annotations

import codecs
import contextlib
import time
from dataclasses import replace
from typing import Any

from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import ProcessInfo
from adbg.engine.types import ExitStatus, NodeStop
from adbg.tui.debugger import events
from adbg.tui.debugger.client import Client, initialize
from adbg.tui.debugger.crashes import crash_reports
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.state import SessionState, State

TAIL = 4096  # characters of the program's output that are kept


class Reception(SessionState):
    """See the module."""

    def _reset(self) -> None:
        self._processes, self._waiting, self._current = [], [], None
        self._begun = False
        self._numbers = 0
        self._graph_cache = None
        self.exit = None
        self.ended_by = ""
        self.selected = 0
        self.backwards_seen = 0
        self.frameworks_seen = set()
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
            lambda body: self._agent_event(process, body, generation),
            lambda reason: self._lost(process, reason, generation),
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
            self._check_record(body.adbg)
        settings = None
        states = protocol.Breakpoints([])
        told: list[protocol.Vlog] = []
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
            self._tell_vlog(process, told)
        self._tell(events.ProcessJoined(process))
        if begun:
            self._configure(process)
        if stopped is not None:
            self._parked(process, stopped)

    def _check_record(self, info: ProcessInfo) -> None:
        """The launched process opens its record before anybody listens: what failed there shows only in what it says
        of itself."""
        if self.program.launched and self.program.run_dir and info.main and not info.run_dir:
            self.notice(
                "warning", f"the program cannot record into {self.program.run_dir}: debugging goes on without a record"
            )

    def _tell_vlog(self, process: Process, told: list[protocol.Vlog]) -> None:
        """What was asked of the log and is not in ``told`` yet; a program that has no such log is debugged all the
        same."""
        for asked in [asked for asked in self._vlog if asked not in told]:
            told.append(asked)
            try:
                process.client.request(asked)
            except DebuggeeGone:
                raise
            except AdbgError as error:
                self.notice("warning", f"{process.title}: {error}")

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
        elif isinstance(body, protocol.BackwardsRan):
            self._backwards_ran(process, body)
        elif isinstance(body, protocol.BackwardBegin):
            self._backward_began(process, body)
        elif isinstance(body, protocol.BackwardEnd):
            self._tell(events.BackwardEnded(process, body))
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

    def _backward_began(self, process: Process, body: protocol.BackwardBegin) -> None:
        process.backwards += 1
        self.backwards_seen += 1
        self.largest = max(self.largest, body.nodes)
        self._tell(events.BackwardBegan(process, body))

    def _backwards_ran(self, process: Process, body: protocol.BackwardsRan) -> None:
        """One by one, as if they had been told so."""
        first = body.first
        for place, us in enumerate(body.us):
            number, iteration = first.backward + place, first.iteration + place
            self._backward_began(process, replace(first, backward=number, iteration=iteration))
            self._tell(events.BackwardEnded(process, protocol.BackwardEnd(number, us)))

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
            self._ended(ExitStatus(reason=reason), generation)

    def _output(self, stream: str, data: bytes, generation: int) -> None:
        if generation != self._generation:
            return
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        self.tail = (self.tail + text)[-TAIL:]
        self._tell(events.Output(stream, text, data))

    def _ended(self, status: ExitStatus, generation: int) -> None:
        """The program ended; what its agents still had to say is read first."""
        if generation != self._generation:
            return
        deadline = time.monotonic() + 2
        for process in self.processes:
            process.client.wait_end(max(0.0, deadline - time.monotonic()))
        for report in crash_reports(getattr(self.program, "folder", ""), bool(self.program.run_dir), status):
            self.notice("error", report)
        with self.changed:
            if generation != self._generation or self._state is State.EXITED:
                return
            self.exit = status
            for process in self._processes:
                process.resumed()
            self._waiting.clear()
            self._set_state(State.EXITED)
        self._tell(events.Exited(status, generation, self.ended_by))
