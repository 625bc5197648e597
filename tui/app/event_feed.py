"""What happens to the program, shown: debugger events and answers to lookups become contents of the panels. UI thread.

Events are put into a deque by the debugger's dispatcher thread and drained by a 30 Hz timer with a budget of 8 ms a
tick: ten thousand traces a second cost as much as ten. Requests go through ``Lookups``; nothing here waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.content import Content

from adbg.engine.record.files import vlog_path
from adbg.engine.types import NodeStop, Phase, StopReason
from adbg.tui.app.banner import BAD, banner_text
from adbg.tui.app.panels.graph_model import PAGE
from adbg.tui.app.stop_reader import Reading
from adbg.tui.commands.startup import stop_commands
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import State
from adbg.tui.debugger.end_notes import end_notes
from adbg.tui.text import cells as figures
from adbg.tui.text.formatting import stop_title, trace_text

WAITING = "the program runs: i stops it at the next node, B sets a breakpoint"
RESTARTED = "── restarted ──"  # between the output of two runs
BUDGET = 0.008  # seconds of events a tick
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


class Showing(Reading):
    """Mixed into the app."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tip_due = True
        self._began_at: float | None = None

    # ---- events

    def drain(self) -> None:
        """Take in what came since the last tick."""
        if self.leaving:
            return
        deadline = time.monotonic() + BUDGET
        output: list[str] = []
        while self.incoming and time.monotonic() < deadline:
            event = self.incoming.popleft()
            if isinstance(event, events.Output):
                output.append(event.text)
                continue
            self._program_wrote(output)
            self._handle(event)
        self._program_wrote(output)
        self.vlog.poll()
        self._tick_status()

    def _handle(self, event: events.Event) -> None:
        handler: Callable[[Any], None] | None = getattr(self, "_on_" + type(event).__name__.lower(), None)
        if handler is not None:
            handler(event)

    def _program_wrote(self, pieces: list[str]) -> None:
        """Take in what the program wrote; empties ``pieces``."""
        if not pieces:
            return
        before = self.output.finished
        self.output.feed("".join(pieces))
        pieces.clear()
        lines = self.output.lines
        fresh = self.output.finished - before
        self.transcript.write_program(lines[len(lines) - 1 - fresh : -1] if fresh else [], lines[-1])
        grown = getattr(self.screen, "grown", None)
        if grown is not None:
            grown()

    def _on_started(self, event: events.Started) -> None:
        if self._began_at is not None:
            line_end = "\n" if self.output.lines[-1] else ""
            self._program_wrote([f"{line_end}{RESTARTED}\n"])
        self._began_at = time.monotonic()
        self.bar.status.backwards = 0
        self.graph.waiting = WAITING
        self.graph.refresh()

    def _on_stopped(self, event: events.Stopped) -> None:
        stop = event.stop
        self.set_timer(SETTLE, lambda: self._tell_stop(stop))
        self._follow_log()
        self.vlog.note(_stop_note(stop), _now(), stop=True)
        if self.debugger.stop is not stop:
            return  # it went on already
        status = self.bar.status
        status.stop, status.us, status.edited = stop, stop.elapsed_us, False
        status.iteration, status.rank = stop.iteration, stop.rank
        status.here, status.total = stop.index, stop.total
        numbers = {row.id: row.spec for row in self.debugger.breakpoints}
        status.breakpoint = " ".join(numbers[n] for n in stop.breakpoints if n in numbers)
        self._banner(stop)
        self.selected = stop.nearest
        self._at_stop = True
        self.shown_node = None
        if stop.reason in (StopReason.NAN, StopReason.INF):
            self.value.model.prefer(stop.message)
        elif stop.phase is Phase.AFTER:
            self.value.model.expect("out")
        self.graph.waiting = "no graph is at hand at this stop"
        self._read_graph(stop)
        self._read_frames()
        self.read_node()
        self._read_shown()
        for line in stop_commands(self.debugger):
            self.run_line(line)

    def _tell_stop(self, stop: NodeStop) -> None:
        """The stop in the console: a moment later, so that what the program wrote before it stands before it."""
        bad = stop.reason in BAD
        self.say(stop_title(stop), "bad" if bad else "stop")
        if stop.message:
            self.say("  " + stop.message, "bad" if bad else "warn")

    def _banner(self, stop: NodeStop) -> None:
        """The evidence of a bad stop; at the first stop of all, what to do."""
        banner = self.banner
        bad = stop.reason in BAD
        tip = self._tip_due and not bad
        banner.set_class(bad, "-bad")
        banner.set_class(tip, "-tip")
        if bad:
            self.show_evidence(self.size.width)
        elif tip:
            self._tip_due = False
            banner.update(Content(TIP))
        self.relayout()

    def show_evidence(self, width: int) -> None:
        """The banner of a bad stop, worded for a terminal of ``width`` cells."""
        stop = self.bar.status.stop
        if stop is not None and stop.reason in BAD:
            self.banner.update(Content(banner_text(stop, width)))

    def hide_tip(self) -> None:
        """The first steps were taken."""
        banner = self.banner
        if banner.has_class("-tip"):
            banner.remove_class("-tip")
            self.relayout()

    def _on_stopqueued(self, event: events.StopQueued) -> None:
        self.say(f"{event.process.title} stopped too and waits: process {event.process.number} goes there", "warn")

    def _on_resumed(self, event: events.Resumed) -> None:
        if self.debugger.stop is not None:
            return  # it stopped again before this event came
        self.lookups.drop()
        self.hide_tip()
        banner = self.banner
        if banner.has_class("-bad"):
            banner.remove_class("-bad")
            self.relayout()

    def _on_trace(self, event: events.Trace) -> None:
        self.vlog.note(trace_text(event.breakpoint, event.text, event.stop), _now())

    def _on_backwardbegan(self, event: events.BackwardBegan) -> None:
        status = self.bar.status
        if event.process is self.debugger.current:
            status.backwards, status.iteration = event.begin.backward, event.begin.iteration
            if not self.graph.model.total:
                self.graph.waiting = (
                    f"running: backward {event.begin.backward} · {figures.count(event.begin.nodes)} nodes"
                    " — i pauses at the next node"
                )
                self.graph.refresh()
            if self.debugger.state is State.RUNNING:
                status.here, status.total = 0, event.begin.nodes

    def _on_nodesran(self, event: events.NodesRan) -> None:
        if event.process is not self.debugger.current:
            return
        if event.nodes and self.debugger.state is State.RUNNING:
            self.bar.status.here = event.nodes[-1].index
        if event.backward == self.graph.model.backward:
            self.graph.model.ran(event.nodes)
            self.graph.refresh()

    def _on_frameworkfound(self, event: events.FrameworkFound) -> None:
        self.bar.status.framework = f"{event.framework.name} {event.framework.version}"

    def _on_processjoined(self, event: events.ProcessJoined) -> None:
        self._follow_log()

    def _on_breakpointschanged(self, event: events.BreakpointsChanged) -> None:
        self.lists.show_breakpoints(event.breakpoints)
        self._mark_lines()
        self.relist()
        if self.debugger.stop is not None and self.graph.model.total:
            self._refreshing = set(range((self.graph.model.total - 1) // PAGE + 1))
            self._next_page()

    def _mark_lines(self) -> None:
        """Breakpoints on source lines, for the code panel."""
        lines: dict[tuple[str, int], bool] = {}
        for row in self.debugger.breakpoints:
            file, mark, rest = row.spec.split(" ", 1)[0].rpartition(":")
            if mark and rest.isdigit() and file.endswith(".py"):
                lines[(file.rsplit("/", 1)[-1], int(rest))] = row.enabled
        self.code.breakpoint_lines = lines
        self.code.refresh()

    def _on_framechanged(self, event: events.FrameChanged) -> None:
        self._show_frame(event.index)

    def _on_selectionchanged(self, event: events.SelectionChanged) -> None:
        index = event.index or (self.debugger.stop.nearest if self.debugger.stop else 0)
        if index and index not in (self.selected, self._told):
            self.graph.select_index(index, notify=False)
            self.select_node(index)

    def _on_shownchanged(self, event: events.ShownChanged) -> None:
        self._read_shown()

    def _on_graphmarked(self, event: events.GraphMarked) -> None:
        self._refreshing = set(self.graph.model.pages)
        self._next_page()

    def _on_edited(self, event: events.Edited) -> None:
        self.bar.status.edited = True
        self.read_node()
        self._read_shown()

    def _on_notice(self, event: events.Notice) -> None:
        self.say(event.text, {"warning": "warn", "error": "bad"}.get(event.level, "dim"))

    def _on_exited(self, event: events.Exited) -> None:
        if event.ended_by == "restart":
            return
        status = self.bar.status
        status.exit_code, status.exit_text = event.code, self.debugger.exit_text
        text = self.debugger.exit_text or f"exit status {event.code}"
        self.say(f"The program ended: {text}", "warn" if event.code else "good")
        if self.debugger.state is not State.EXITED:
            return  # it was started anew meanwhile
        for note in end_notes(self.debugger):
            self.say(note, "warn")
        self.say("restart runs it anew, q leaves", "dim")
        self.lookups.drop()
        if not self.graph.model.total:
            self.graph.waiting = "the program never stopped: B sets a breakpoint, `restart` runs it anew"
            self.graph.refresh()
        self.hide_tip()

    def _on_detached(self, event: events.Detached) -> None:
        self.say("Detached: the program runs on without the debugger", "warn")

    # ---- the status bar

    def _tick_status(self) -> None:
        status = self.bar.status
        status.state = self.debugger.state.value
        status.title = self.debugger.title
        status.log_lines = len(self.vlog.store)
        status.processes = max(len(self.debugger.processes), 1)
        status.waiting = len(self.debugger.waiting)
        if self.debugger.state is not State.STOPPED:
            status.stop = None
        status.elapsed = time.monotonic() - self._began_at if self._began_at is not None else None
        self.bar.show()

    def _follow_log(self) -> None:
        """The log of the current process; another one after a restart."""
        folder = getattr(self.debugger.program, "folder", "") or self.debugger.run_dir
        process = self.debugger.current
        if not folder or process is None:
            return
        labels = (
            f"{process.rank}-{process.info.pid}",
            str(process.rank),
        )  # of a second process with this rank: with its pid
        paths = [vlog_path(Path(folder), label) for label in labels]
        self.vlog.open_file(str(next((path for path in paths if path.exists()), paths[-1])))
