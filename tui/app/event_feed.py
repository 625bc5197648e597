"""What happens to the program, shown: debugger events and answers to lookups become contents of the panels. UI thread.

Events are put into a deque by the debugger's dispatcher thread and drained by a 30 Hz timer with a budget of 8 ms a
tick: ten thousand traces a second cost as much as ten. Requests go through ``Lookups``; nothing here waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adbg.engine.record.files import vlog_path
from adbg.engine.types import NodeStop, SpecKind
from adbg.tui.app.banner import BAD
from adbg.tui.app.lines.screen_text import ScreenText
from adbg.tui.app.messages import Read
from adbg.tui.app.panels.status_bar import Status
from adbg.tui.app.profile.watch import ProfileWatch
from adbg.tui.app.screens.dialogs import QuitScreen
from adbg.tui.app.screens.main import MainScreen
from adbg.tui.app.screens.output import OutputScreen
from adbg.tui.app.screens.ranks import RanksScreen
from adbg.tui.app.stop_reader import StopReader
from adbg.tui.commands.startup import stop_commands
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.end_notes import end_notes
from adbg.tui.debugger.input_watch import InputWatch
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.reports import entering_rows
from adbg.tui.text import cells as figures
from adbg.tui.text.attach import entering_summary
from adbg.tui.text.evidence import stop_words
from adbg.tui.text.findings import told_line
from adbg.tui.text.formatting import exit_sentence, exit_text, stop_title, trace_text
from adbg.tui.text.memory import growth_lines
from adbg.tui.text.profile import is_whole, state_text
from adbg.tui.text.quantities import size

WAITING = "the program is running: i pauses at the next node, B sets a breakpoint"
RESTARTED = "── restarted ──"  # between the output of two runs
BUDGET = 0.008  # seconds of events a tick
_TONES = {"warning": "warn", "error": "bad"}
PAST = 0.3  # seconds of running after which the panels are said to show the last stop
SETTLE = 0.06  # seconds; program output comes through a pty and is up to some 20 ms behind the stop
TIP = (
    "s next node · c continue · b breakpoint at the cursor · j k walk the graph · 4 the values"
    " · ctrl+x type a command · ? help"
)


def _now() -> str:
    """The time as the log writes it: minutes, seconds, milliseconds."""
    now = time.time()
    return time.strftime("%M:%S.", time.localtime(now)) + f"{int(now * 1000) % 1000:03d}"


def _stop_note(stop: NodeStop) -> str:
    """A stop in a line of the log: "step: before MmBackward0#9 #5"."""
    name = f" {stop.node.unique_name}" if stop.node is not None else ""
    return f"{stop.reason.value}: {stop.phase.value}{name}{f' #{stop.index}' if stop.node is not None else ''}"


class EventFeed:
    """``put`` takes events on any thread, ``drain`` shows them; ``run_line`` runs commands that belong to a stop.

    Attributes:
        output: what the program wrote.
        profiles: the one that is made, and the reports.
    """

    def __init__(
        self, debugger: Debugger, main: MainScreen, reader: StopReader, run_line: Callable[[str], None]
    ) -> None:
        self.debugger = debugger
        self.main = main
        self.reader = reader
        self._run_line = run_line
        self._incoming: deque[events.Event] = deque()
        self.arrived: NodeStop | None = None  # the last stop that was put
        self.output = ScreenText()
        self._input = InputWatch(debugger)
        self.profiles = ProfileWatch(debugger, main, reader.lookups)
        main.open_ranks = self._open_ranks
        self._untold: deque[NodeStop] = deque()  # stops that are not in the console yet
        self._taken: NodeStop | None = None  # the last one that was taken in
        self._tip_due = True
        self._began_at: float | None = None
        self._shown: tuple[int, Process | None] = (-1, None)  # the run and its process that are shown
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Started: self._started,
            events.ProcessJoined: self._joined,
            events.Stopped: self._stopped,
            events.StopQueued: self._stop_queued,
            events.Resumed: lambda event: self._resumed(),
            events.Trace: self._trace,
            events.BackwardBegan: self._backward_began,
            events.NodesRan: self._nodes_ran,
            events.FrameworkFound: self._framework_found,
            events.BreakpointsChanged: self._breakpoints_changed,
            events.FrameChanged: lambda event: self.reader.show_frame(event.index),
            events.SelectionChanged: lambda event: self.reader.selection_changed(event.index),
            events.ShownChanged: lambda event: self.reader.read_shown(),
            events.GraphMarked: lambda event: self.reader.reread_graph(),
            events.FramesShown: lambda event: self.reader.reread_lines(),
            events.Edited: lambda event: self._edited(),
            events.ProfileChanged: self.profiles.changed,
            events.ProfileEnded: self._profile_ended,
            events.Found: self._found,
            events.MemoryGrows: lambda event: self.main.say("\n".join(growth_lines(event.growth)), "warn"),
            events.Notice: lambda event: self.main.say(event.text, _TONES.get(event.level, "dim")),
            events.Detached: lambda event: self._detached(),
            events.Exited: self._exited,
        }

    @property
    def idle(self) -> bool:
        """No event waits to be shown."""
        return not self._incoming

    def put(self, event: events.Event) -> None:
        self._incoming.append(event)
        if isinstance(event, events.Stopped):
            self.arrived = event.stop

    def drain(self, to_stop: bool = False) -> None:
        """Take in what came since the last tick; ``to_stop``: up to the last stop, however long that takes."""
        deadline = time.monotonic() + BUDGET
        output: list[str] = []
        while self._incoming and (time.monotonic() < deadline or (to_stop and self._taken is not self.arrived)):
            event = self._incoming.popleft()
            if isinstance(event, events.Output):
                output.append(event.text)
                continue
            self._program_wrote(output)
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)
        self._program_wrote(output)
        self.main.vlog.poll()
        self.main.heed_log()
        self._tick_status()

    def _open_ranks(self) -> None:
        self.main.app.push_screen(RanksScreen(self.debugger, self._run_line))

    def _program_wrote(self, pieces: list[str]) -> None:
        """Take in what the program wrote; empties ``pieces``."""
        if not pieces:
            return
        before = self.output.finished
        self.output.feed("".join(pieces))
        pieces.clear()
        lines = self.output.lines
        fresh = self.output.finished - before
        self.main.transcript.write_program(lines[len(lines) - 1 - fresh : -1] if fresh else [], lines[-1])
        front = self.main.app.screen
        if isinstance(front, OutputScreen):
            front.grown()

    def _started(self, event: events.Started) -> None:
        if self._began_at is not None:
            self._forget_run()
            self.main.vlog.note(RESTARTED, _now())
            line_end = "\n" if self.output.lines[-1] else ""
            self._program_wrote([f"{line_end}{RESTARTED}\n"])
        self._began_at = time.monotonic()
        self.main.graph.waiting = WAITING
        self.main.graph.refresh()

    def _forget_run(self) -> None:
        """The program was started again: nothing of the run before is shown."""
        self.main.bar.status = Status()
        self.main.banner.clear()
        self.main.set_past(False)
        self.reader.forget()
        self.main.relayout()

    def _stopped(self, event: events.Stopped) -> None:
        stop = event.stop
        self._untold.append(stop)
        self._taken = stop
        self.main.app.set_timer(SETTLE, self._tell_stops)
        self._follow_log()
        self.main.vlog.note(_stop_note(stop), _now(), stop=True)
        if self.debugger.stop is not stop:
            return  # it went on already
        status = self.main.bar.status
        status.stop, status.us, status.edited = stop, stop.elapsed_us, False
        status.iteration = stop.iteration
        status.here, status.total, status.partial = stop.index, stop.total, stop.truncated
        numbers = {row.id: row.spec for row in self.debugger.settings.breakpoints}
        status.breakpoint = " ".join(numbers[n] for n in stop.breakpoints if n in numbers)
        self._banner(stop)
        self.main.set_past(False)
        self.reader.stopped(stop)
        for line in stop_commands(self.debugger):
            self._run_line(line)

    def _tell_stops(self) -> None:
        """The stop in the console: a moment later, so that what the program wrote before it stands before it."""
        while self._untold:
            stop = self._untold.popleft()
            bad = stop.reason in BAD
            self.main.say(stop_title(stop), "bad" if bad else "stop")
            if message := stop_words(stop):
                self.main.say("  " + message.replace("\n", "\n  "), "bad" if bad else "warn")

    def catch_up(self) -> None:
        """Before the next command is shown: what became of those above it."""
        self.drain(to_stop=True)
        self._tell_stops()

    def _banner(self, stop: NodeStop) -> None:
        """The evidence of a bad stop; at the first stop of all, what to do."""
        banner = self.main.banner
        if stop.reason in BAD:
            banner.show_stop(stop, self.main.app.size.width)
        elif self._tip_due:
            self._tip_due = False
            banner.show_tip(TIP)
        else:
            banner.clear()
        self.main.relayout()

    def _stop_queued(self, event: events.StopQueued) -> None:
        self.main.say(
            f"{event.process.title} stopped too and is waiting: `process {event.process.number}` shows it", "warn"
        )

    def _resumed(self) -> None:
        if self.debugger.stop is not None:
            return  # it stopped again before this event came
        self.reader.lookups.drop()
        self.main.bar.status.went_on()
        self.main.app.set_timer(PAST, self._is_past)
        if self.main.banner.clear():
            self.main.relayout()

    def _detached(self) -> None:
        """The program runs on, unseen: nothing that is shown is of now, and no key steps it."""
        self.main.bar.status.went_on()
        self.main.set_past(bool(self.main.graph.model.total))
        if self.main.banner.clear():
            self.main.relayout()

    def _is_past(self) -> None:
        """The panels still show the last stop; not said of a step, which is over before it is read."""
        if self.debugger.stop is None and self.main.graph.model.total:
            self.main.set_past(True)

    def _trace(self, event: events.Trace) -> None:
        self.main.vlog.note(trace_text(event.breakpoint, event.text, event.stop), _now())

    def _backward_began(self, event: events.BackwardBegan) -> None:
        status = self.main.bar.status
        if event.process is self.debugger.current:
            status.backwards, status.iteration = event.begin.backward, event.begin.iteration
            if not self.main.graph.model.total:
                self.main.graph.waiting = (
                    f"running: backward {event.begin.backward} · {figures.count(event.begin.nodes)} nodes"
                    " — i pauses at the next node"
                )
                self.main.graph.refresh()
            if self.debugger.state is State.RUNNING:
                # shown once a node is known to have run
                status.here, status.total, status.partial = 0, event.begin.nodes, event.begin.truncated

    def _nodes_ran(self, event: events.NodesRan) -> None:
        if event.process is not self.debugger.current:
            return
        model = self.main.graph.model
        if event.nodes and self.debugger.state is State.RUNNING:
            self.main.bar.status.here = event.nodes[-1].index
        if event.backward == model.backward:
            self.main.bar.status.total = model.total
            model.ran(event.nodes)
            self.main.graph.refresh()

    def _framework_found(self, event: events.FrameworkFound) -> None:
        self.main.bar.status.framework = f"{event.framework.name} {event.framework.version}"
        self.main.retitle()

    def _breakpoints_changed(self, event: events.BreakpointsChanged) -> None:
        self.main.lists.show_breakpoints(event.breakpoints)
        unmet = [str(row.id) for row in event.breakpoints if row.met is False and row.enabled]
        verb = "matches" if len(unmet) == 1 else "match"
        self._note("unmet", f"bp {','.join(unmet)} {verb} nothing so far" if unmet else "")
        self._mark_lines()
        self.main.relist()
        self.reader.reread_graph()

    def _mark_lines(self) -> None:
        """Breakpoints on source lines, for the code panel."""
        lines: dict[tuple[str, int], bool] = {}
        for row in self.debugger.settings.breakpoints:
            if row.kind is SpecKind.LINE:
                lines[(row.file.rsplit("/", 1)[-1], row.line)] = row.enabled
        self.main.code.breakpoint_lines = lines
        self.main.code.refresh()

    def _edited(self) -> None:
        self.main.bar.status.edited = True
        self.reader.read_node()
        self.reader.read_shown()

    def _found(self, event: events.Found) -> None:
        if event.worth_a_line:
            told = event.what == "told"
            style = {"error": "bad", "warning": "warn"}.get(event.finding.severity, "dim") if told else "dim"
            first = told and len(self.debugger.findings.ranked()) == 1
            more = "; F8 shows what proves it" if first else ""
            self.main.say(told_line(event.finding, event.what, event.rank) + more, style)

    def _profile_ended(self, event: events.ProfileEnded) -> None:
        self.main.say(state_text(event.state, prompt=True), "dim" if is_whole(event.state) else "warn")
        self.profiles.ended(event)

    def _joined(self, event: events.ProcessJoined) -> None:
        self._follow_log()
        if arrival := event.process.arrival():
            self.main.say(arrival, "dim")

    def _exited(self, event: events.Exited) -> None:
        if event.ended_by == "restart":
            self._forget_run()
            return
        status = self.main.bar.status
        status.exit_code, status.exit_text = event.status.status, exit_text(event.status)
        self.main.say(exit_sentence(event.status), "warn" if event.status.status else "good")
        if self.debugger.state is not State.EXITED:
            return  # it was restarted meanwhile
        if isinstance(front := self.main.app.screen, QuitScreen):
            front.script_ended()
        for note in end_notes(self.debugger):
            self.main.say(note, "warn")
        again = "restart runs it again, " if self.debugger.program.launched else ""
        self.main.say(f"{again}q quits", "dim")
        self.reader.lookups.drop()
        self.main.bar.status.went_on()
        self.main.set_past(bool(self.main.graph.model.total))
        if not self.main.graph.model.total:
            hint = ": B sets a breakpoint, `restart` runs it again" if again else ""
            stopped = "has ended" if self.debugger.run.ever_stopped else "never stopped"
            self.main.graph.waiting = f"the program {stopped}{hint}"
            self.main.graph.refresh()
        if self.main.banner.clear(tip_only=True):
            self.main.relayout()

    # ---- the status bar

    def _note(self, kind: str, text: str) -> None:
        """Keep ``text`` in the status bar; "" takes it away."""
        notes = self.main.bar.status.notes
        if text:
            notes[kind] = text
        else:
            notes.pop(kind, None)

    def _tick_status(self) -> None:
        status = self.main.bar.status
        status.state = self.debugger.state.value
        self._tick_entering(status)
        self.profiles.tick()
        status.title = self.debugger.title
        status.log_lines = len(self.main.vlog.store)
        status.processes = max(len(self.debugger.processes), 1)
        self._tick_process(status)
        status.waiting = len(self.debugger.model.waiting)
        if self.debugger.state is not State.STOPPED and status.stop is not None:
            status.went_on()
        status.input_wait = self._input.poll()
        self.main.heed_input(status.input_wait)
        status.elapsed = time.monotonic() - self._began_at if self._began_at is not None else None
        self.main.bar.show()

    def _tick_entering(self, status: Status) -> None:
        """While adbg gets into a program that was found running."""
        if not self.debugger.entering:
            return
        status.state = "attaching"
        rows = entering_rows(self.debugger, time.monotonic())
        text = entering_summary(rows) if rows else self.main.graph.waiting
        if text != self.main.graph.waiting:
            self.main.graph.waiting = text
            self.main.graph.refresh()

    def _tick_process(self, status: Status) -> None:
        """Which process is shown; another one than before is said."""
        process = self.debugger.current
        if process is None:
            return
        run = self.debugger.run.number
        if self._shown != (run, process) and self._shown[0] == run and self.debugger.alive:
            self.main.say(f"Shown now: {process.title}", "warn")
            if self.debugger.stop is None:  # what the panels show is of the other one
                self.reader.forget()
        self._shown = (run, process)
        rank = "" if process.info.rank is None else f" rank {process.info.rank}"
        held = f", {count} held" if (count := len(self.debugger.stop_all.standing())) else ""
        status.process = f"process {process.number}{rank}{held}"

    def ask_memory(self) -> None:
        """Resident memory of the current process, once a second (read from /proc, the program is not touched)."""
        process = self.debugger.current
        if process is not None and process.alive and self.debugger.alive:
            self.reader.lookups.ask("memory", process.info.pid, process.resident, self._memory_read)

    def _memory_read(self, event: Read) -> None:
        if event.error is None and event.result:
            self.main.bar.status.memory = size(event.result)

    def _follow_log(self) -> None:
        """The log of the current process; another one after a restart."""
        folder = self.debugger.program.folder or self.debugger.program.run_dir
        process = self.debugger.current
        if not folder or process is None:
            return
        # Of a second process with this rank: with its pid.
        labels = f"{process.rank}-{process.info.pid}", str(process.rank)
        paths = [vlog_path(Path(folder), label) for label in labels]
        self.main.vlog.open_file(str(next((path for path in paths if path.exists()), paths[-1])))
