"""What agents and the launcher report, turned into changes of the model and events.

Everything here runs on threads that are not the front end's: an agent joins on a thread of its own, its events come
on its client's reader thread, output and the end on the launcher's. None of them waits for an agent's answer on a
reader thread; a stop waits a moment for the output that the program wrote before it.
"""

from __future__ import annotations

import codecs
import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import Finding, ProcessInfo
from adbg.engine.types import ExitStatus, NodeStop
from adbg.tui.debugger import events
from adbg.tui.debugger.client import Client, initialize
from adbg.tui.debugger.crashes import MAIN, crash_reports, crashed
from adbg.tui.debugger.findings.crash import crash_finding
from adbg.tui.debugger.findings.hangs import hang_finding
from adbg.tui.debugger.findings.kinds import CRASHED
from adbg.tui.debugger.findings.store import Findings
from adbg.tui.debugger.job.aftermath import verdict_after
from adbg.tui.debugger.job.look import verdict_on
from adbg.tui.debugger.job.ranks import Ranks
from adbg.tui.debugger.job.stop_all import StopAll
from adbg.tui.debugger.model import Model, Run, State
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.profiling.profiles import Profiles
from adbg.tui.debugger.program import Program
from adbg.tui.debugger.settings import Sent, Settings
from adbg.tui.text.hang import hang_lines

TAIL = 4096  # characters of the program's output that are kept


class Incoming:
    """``run`` is the start of the program that a report is about; reports about an earlier one are dropped."""

    def __init__(self, model: Model, settings: Settings, program: Program, ranks: Ranks, stop_all: StopAll) -> None:
        self._model = model
        self._settings = settings
        self._program = program
        self._ranks = ranks
        self._stop_all = stop_all
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self.findings = Findings(program.command)
        self._looking = threading.Lock()
        self._hang: tuple[str, Any] = "", None  # what was told last of a job that hangs
        self.profiles = Profiles(model.notice, lambda process, state: model.tell(events.ProfileEnded(process, state)))

    def listen(self, run: Run) -> None:
        """Start (or find) the program; its reports come in from now on."""
        self._decoders = {}
        self.profiles.begin()
        self.findings.begin()
        self._hang = "", None
        self._program.start(
            lambda client, info: self._joined(client, info, run),
            lambda stream, data: self._output(stream, data, run),
            lambda status: self._ended(status, run),
            lambda text: self._model.notice("warning", text),
        )

    # ------------------------------------------------------------------ a process joins

    def _joined(self, client: Client, info: ProcessInfo, run: Run) -> None:
        model = self._model
        with model.changed:
            if run is not model.run or not model.alive:
                client.close()
                return
            run.joined += 1
            process = Process(run.joined, client, info, model)
        client.start(
            lambda body: self._agent_event(process, body, run),
            lambda reason: self._lost(process, reason, run),
        )
        try:
            token = client.token or self._program.token
            self._adopt(process, initialize(client, token, self._program.stacks), run)
        except AdbgError as error:
            if not isinstance(error, DebuggeeGone):
                model.notice("error", f"process {info.pid} cannot be debugged: {error}")
            client.close()

    def _adopt(self, process: Process, body: protocol.InitializeBody, run: Run) -> None:
        """Give a new process the settings; it becomes current when it is the first."""
        if body.adbg is not None:
            process.info = body.adbg
            process.frameworks = tuple(body.adbg.frameworks)
            self._check_record(body.adbg)
        model, settings = self._model, self._settings
        sent: Sent | None = None
        states = protocol.Breakpoints([])
        while True:  # settings that change meanwhile are sent again before it counts as one of the processes
            with model.changed:
                wanted = settings.present()
                if wanted == sent:
                    if not process.alive:
                        return
                    self._enter(process, states, run)
                    begun, stopped = run.begun, process.stop
                    break
            states = settings.send(process, wanted, sent)
            sent = wanted
        if self._program.attachment is not None:
            model.notice("info", self._program.attachment.arrival(process.info))
        model.tell(events.ProcessJoined(process))
        self._drop_invalid(states)
        self.profiles.joined(process)
        if begun:
            self.configure(process)
        with model.changed:
            self._stop_all.joined(process)
        self._ranks.wake()
        if stopped is not None:
            self._parked(process, stopped, run)

    def _drop_invalid(self, states: protocol.Breakpoints) -> None:
        """Specs that were given while no process was there to parse them."""
        for state in states.breakpoints:
            if state.verified:
                continue
            with self._model.lock, contextlib.suppress(CommandError):
                self._settings.list.remove(state.id)
                self._model.notice("error", f"breakpoint {state.id} is removed: {state.message}")
        self._model.tell(events.BreakpointsChanged(self._settings.breakpoints))

    def _check_record(self, info: ProcessInfo) -> None:
        """The launched process opens its record before it connects: that this failed shows only in its own report."""
        folder = self._program.run_dir
        if self._program.launched and folder and info.main and not info.run_dir:
            self._model.notice("warning", f"the program cannot record into {folder}: debugging continues unrecorded")

    def _enter(self, process: Process, states: protocol.Breakpoints, run: Run) -> None:
        """Under the lock: from here on it is one of the processes."""
        run.processes.append(process)
        self._settings.list.learn(process.number, states.breakpoints)
        run.frameworks_seen.update(f.name for f in process.frameworks)
        if run.current is None or not run.current.alive:
            run.current = process
        self._model.changed.notify_all()

    def configure(self, process: Process) -> None:
        """Let the script of ``process`` run, once."""
        with self._model.lock:
            if process.configured:
                return
            process.configured = True
        try:
            # Whichever is the first to call backward: where ranks train, or workers, the main process may never do.
            first = self._model.run.entered
            entry = self._settings.stop_at_entry and (first is None or first.stop is not None)
            process.client.request(protocol.ConfigurationDone(entry))
        except DebuggeeGone:
            pass  # the reader reports its end
        except AdbgError as error:
            self._model.notice("error", str(error))

    # ------------------------------------------------------------------ events of an agent

    def _agent_event(self, process: Process, body: Any, run: Run) -> None:
        if run is not self._model.run:
            return
        tell = self._model.tell
        if isinstance(body, protocol.Stopped):
            if body.adbg is not None:
                self._program.drain()  # what was written before the stop is told before it, and no line in two halves
                with self._model.changed:
                    known = process in run.processes
                    process.stop = body.adbg
                if known:
                    self._parked(process, body.adbg, run)
        elif isinstance(body, protocol.NodesRan):
            tell(events.NodesRan(process, body.backward, tuple(body.nodes)))
        elif isinstance(body, protocol.BackwardsRan):
            self._backwards_ran(process, body, run)
        elif isinstance(body, protocol.BackwardBegin):
            self._backward_began(process, body, run)
        elif isinstance(body, protocol.BackwardEnd):
            tell(events.BackwardEnded(process, body))
        elif isinstance(body, protocol.Trace):
            tell(events.Trace(process, body.breakpoint, body.text, body.stop))
        elif isinstance(body, protocol.BreakpointChanged):
            self._breakpoint_changed(process, body)
        elif isinstance(body, protocol.ProcessChanged):
            process.info = body.process
            self._ranks.wake()
            threading.Thread(target=self.profiles.joined, args=(process,), name="adbg-profile", daemon=True).start()
        elif isinstance(body, protocol.FrameworkLoaded):
            process.frameworks = (*process.frameworks, body.framework)
            run.frameworks_seen.add(body.framework.name)
            tell(events.FrameworkFound(process, body.framework))
        elif isinstance(body, protocol.ProgramEnds):
            process.said_end = True
            run.iterations = (run.iterations or 0) + body.iterations
        elif isinstance(body, protocol.ProfileChanged):
            self.profiles.changed(process, body.state)
            tell(events.ProfileChanged(process, body.state))
        elif isinstance(body, protocol.Found):
            if what := self.findings.add(process, body.finding):
                worded = self.findings.worded(process, body.finding)
                tell(events.Found(process, worded, what, listed=self.findings.listing))
        elif isinstance(body, protocol.RankFacts):
            for finding, what in self.findings.compare(process, body):
                tell(events.Found(process, finding, what, of_job=True))
            if body.what == "stands":
                threading.Thread(target=self._stands, args=(process, run), name="adbg-hang", daemon=True).start()
        elif isinstance(body, protocol.DiagnosisEnds):
            self.findings.ended(process, body)
            tell(events.DiagnosisEnded(process))
        elif isinstance(body, protocol.MemoryGrows):
            tell(events.MemoryGrows(process, body.growth))
        elif isinstance(body, protocol.Output):
            self._model.notice("warning" if body.category == "important" else "info", body.output.rstrip("\n"))

    def _stands(self, process: Process, run: Run) -> None:
        """A rank stands in a call: what all of them do is looked at. One look at a time."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            finding = hang_finding(verdict_on(list(run.processes), run.exit))
            if finding is None or (finding.message, finding.cause) == self._hang:  # since when it waits is no news
                return
            self._hang = finding.message, finding.cause
            if what := self.findings.add_of_job(process, finding):
                self._model.tell(events.Found(process, finding, what, of_job=True))
        except AdbgError:  # it went on, or ended: nothing is told
            return
        finally:
            self._looking.release()

    def _ranks_apart(self, run: Run) -> None:
        """Whether a rank was killed because the ranks called different collectives."""
        verdict = verdict_after(self._program.folder) if len(run.processes) > 1 else None
        if verdict is None:
            return
        if self._settings.diagnosis is None:
            self._model.notice("error", "\n".join(hang_lines(verdict, recorded=True)))
        else:
            self._found(hang_finding(verdict, over=True), run)

    def _crashes(self, status: ExitStatus, run: Run) -> None:
        """Findings of processes that a signal killed."""
        diagnosis = self._settings.diagnosis
        if diagnosis is None or (diagnosis.only and CRASHED not in diagnosis.only):
            return
        folder = self._program.folder
        for number, (label, signum) in enumerate(crashed(folder, status, bool(run.ended_by))):
            survived = label != MAIN and status.code == 0
            self._found(crash_finding(folder, label, signum, number, survived), run)

    def _found(self, finding: Finding | None, run: Run) -> None:
        """Of what no process can tell any more."""
        process = run.processes[0] if run.processes else None
        if finding is not None and process is not None and (what := self.findings.add_of_job(process, finding)):
            self._model.tell(events.Found(process, finding, what, of_job=True))

    def _backward_began(self, process: Process, body: protocol.BackwardBegin, run: Run) -> None:
        run.backwards_seen += 1
        run.largest = max(run.largest, body.nodes)
        run.cut = body.nodes if body.truncated else run.cut
        self._model.tell(events.BackwardBegan(process, body))

    def _backwards_ran(self, process: Process, body: protocol.BackwardsRan, run: Run) -> None:
        """One by one, as if each had been reported by itself."""
        first = body.first
        for place, us in enumerate(body.us):
            number, iteration = first.backward + place, first.iteration + place
            self._backward_began(process, replace(first, backward=number, iteration=iteration), run)
            self._model.tell(events.BackwardEnded(process, protocol.BackwardEnd(number, us)))

    def _parked(self, process: Process, stop: NodeStop, run: Run) -> None:
        model = self._model
        with model.changed:
            process.parked(stop)
            run.ever_stopped = True
            if run is not model.run or not model.alive:
                return
            if self._stop_all.arrived(process, stop):
                model.changed.notify_all()
            elif model.state is State.STOPPED and (run.current is not process or run.waiting):
                if process not in run.waiting:
                    run.waiting.append(process)
                model.tell(events.StopQueued(process, stop))
            else:
                model.make_current(process)
                self._stop_all.hold_others(process, stop)
        model.tell(events.RanksChanged())

    def _breakpoint_changed(self, process: Process, body: protocol.BreakpointChanged) -> None:
        breakpoints = self._settings.list
        with self._model.lock:
            changed = breakpoints.learn(process.number, [body.breakpoint])
            if body.reason == "removed":
                with contextlib.suppress(CommandError):
                    breakpoints.remove(body.breakpoint.id)
            elif not changed:
                return
            rows = breakpoints.rows()
        self._model.tell(events.BreakpointsChanged(rows))
        if body.reason == "unmatched":
            for row in rows:
                if row.id == body.breakpoint.id and row.met is False:
                    self._model.notice("warning", row.unmatched_text)

    def _lost(self, process: Process, reason: str, run: Run) -> None:
        model = self._model
        self.profiles.lost(process)
        with model.changed:
            process.alive = False
            process.changed_at = time.monotonic()
            if run is not model.run:
                return
            process.resumed()
            self._settings.list.forget_process(process.number)
            if process in run.waiting:
                run.waiting.remove(process)
            rest = model.processes
            if process is run.current:
                run.current = rest[0] if rest else process
                standing = next((other for other in rest if other.stop is not None), None)
                if run.waiting:
                    model.show_next()
                elif standing is not None:
                    model.make_current(standing)
                elif model.state is State.STOPPED:
                    model.set_state(State.RUNNING)
                    self._stop_all.went_on()
            model.changed.notify_all()
        if process in run.processes:
            model.tell(events.ProcessLeft(process))
        if not self._program.launched and not rest and model.state is not State.DETACHED:
            attachment = self._program.attachment
            status = ExitStatus(reason=reason) if attachment is None else attachment.end_of(process.info.pid)
            if status is not None:
                self._ended(status, run)

    # ------------------------------------------------------------------ the program as a whole

    def _output(self, stream: str, data: bytes, run: Run) -> None:
        if run is not self._model.run:
            return
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        run.tail = (run.tail + text)[-TAIL:]
        self._model.tell(events.Output(stream, text, data))

    def _ended(self, status: ExitStatus, run: Run) -> None:
        """The program ended; what its agents have sent until then is read first."""
        model = self._model
        if run is not model.run:
            return
        deadline = time.monotonic() + 2
        for process in model.processes:
            process.client.wait_end(max(0.0, deadline - time.monotonic()))
        self._ranks_apart(run)
        self._crashes(status, run)
        for report in crash_reports(self._program.folder, bool(self._program.run_dir), status, bool(run.ended_by)):
            model.notice("error", report)
        with model.changed:
            if run is not model.run or model.state is State.EXITED:
                return
            run.exit = status
            for process in run.processes:
                process.resumed()
            run.waiting.clear()
            model.set_state(State.EXITED)
        model.tell(events.Exited(status, run.number, run.ended_by))
