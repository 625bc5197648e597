"""The profile that is made: said in the status bar while it runs, and its report opened when it is over. UI thread."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from adbg.engine.protocol import messages as protocol
from adbg.engine.types import Phase, SourceLine
from adbg.tui.app.lookups import Lookups
from adbg.tui.app.profile.artifacts import Saved, saved
from adbg.tui.app.profile.contents import Contents
from adbg.tui.app.profile.dialog import ProfileScreen, Submit, offers
from adbg.tui.app.profile.report_screen import ReportScreen
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.profiling.profiles import LIVE
from adbg.tui.text.profile import region_text

if TYPE_CHECKING:
    from adbg.tui.app.screens.main import MainScreen

LEFT = "report-left"  # the name of a report that is kept
ASK_EVERY = 1.0  # seconds between two questions how many iterations have passed


class ProfileWatch:
    """``changed`` and ``ended`` take the debugger's events, ``tick`` is called now and then."""

    def __init__(self, debugger: Debugger, main: MainScreen, lookups: Lookups) -> None:
        self._debugger = debugger
        self._main = main
        self._lookups = lookups
        self._known: dict[str, Contents] = {}
        self._live: dict[object, tuple[protocol.ProfileState, float]] = {}  # by process: state, since when
        self._asked = 0.0
        self._left: ReportScreen | None = None  # for the source or the graph
        self.submit: Submit | None = None  # set by the app: runs commands

    # ---- events

    def changed(self, event: events.ProfileChanged) -> None:
        if event.state.state in LIVE:
            before = self._live.get(event.process)
            since = before[1] if before is not None and before[0].state == event.state.state else time.monotonic()
            self._live[event.process] = (event.state, since)
        else:
            self._live.pop(event.process, None)
        self.tick()

    def ended(self, event: events.ProfileEnded) -> None:
        """Its report, unless the user is at something else: then it is told where it is."""
        self._live.pop(event.process, None)
        self.tick()
        state, main = event.state, self._main
        if not state.file or event.process is not self._debugger.current:
            return
        top = main.app.screen
        if isinstance(top, ProfileScreen) and top.waits:
            top.dismiss(None)
            main.call_after_refresh(self.open, state.folder)
        elif len(main.app.screen_stack) > 1 or main.command.value:
            main.notify(f"the profile is there: F5 shows it ({state.folder})", markup=False)
        else:
            self.open(state.folder)

    def tick(self) -> None:
        """What is measured now, in the status bar."""
        process = self._debugger.current
        found = self._live.get(process)
        notes = self._main.bar.status.notes
        if found is None:
            notes.pop("profile", None)
            return
        notes["profile"] = self.told(*found) + " (F5)"
        now = time.monotonic()
        if now - self._asked > ASK_EVERY:
            self._asked = now
            self._lookups.ask("profile", process, self._state, self._read)

    def _state(self) -> protocol.ProfileState:
        body: protocol.ProfileBody = self._debugger.view.request(protocol.Profile())
        return body.state

    def _read(self, read: Any) -> None:
        """A region that has not begun is told in answers only, its progress too."""
        if read.error is not None:
            return
        state: protocol.ProfileState = read.result
        if state.state not in LIVE:
            self._live.pop(read.key, None)
            return
        found = self._live.get(read.key)
        since = found[1] if found is not None and found[0].state == state.state else time.monotonic()
        self._live[read.key] = (state, since)
        if found is None and self._debugger.stop is not None:
            self._main.notify("c continues: the region begins then", timeout=4)

    def told(self, state: protocol.ProfileState, since: float) -> str:
        """ "profile cprofile: 3 of 10, 1 s"."""
        if state.state != "running":
            return f"profile {state.profiler}: waits"
        counted = state.region.kind in ("iterations", "node")
        passed = f"{state.iterations:,} of {state.region.count:,}, " if counted else ""
        return f"profile {state.profiler}: {passed}{time.monotonic() - since:.0f} s"

    # ---- screens

    def ask(self) -> None:
        """F5."""
        if self._back():
            return
        debugger, main = self._debugger, self._main
        stop, row = debugger.stop, main.graph.selected
        here = stop.node.unique_name if stop is not None and stop.node is not None else ""
        node = here if stop is not None and stop.phase is Phase.BEFORE else ""
        selected = row.unique_name if stop is not None and row is not None and row.index > stop.index else ""
        rows = offers(main.code.breakpoint_spec(), node, selected)
        submit = self.submit
        assert submit is not None
        screen = ProfileScreen(
            self._lookups.ask, self._profilers, submit, rows, saved(debugger.program.run_dir or ""), self._progress,
            self._end, alive=debugger.alive, here=here,
        )  # fmt: skip

        def chosen(report: Saved | None) -> None:
            if report is not None:
                self.open(report.path)
            else:
                self._lookups.ask("profile", debugger.current, self._state, self._read)

        main.app.push_screen(screen, chosen)

    def _progress(self) -> str:
        """How far the profile is that is made; "" for none."""
        found = self._live.get(self._debugger.current)
        return f"{self.told(*found)}; {region_text(found[0].region)}" if found is not None else ""

    def _end(self) -> None:
        """End it. On the thread of the questions: a node that is run again keeps that of the commands."""

        def ask() -> protocol.ProfileState:
            body: protocol.ProfileBody = self._debugger.view.request(protocol.Profile("stop"), 60.0)
            return body.state

        def told(read: Any) -> None:
            if read.error is not None:
                self._main.notify(str(read.error), severity="warning", markup=False)

        self._lookups.ask("profile-end", None, ask, told)

    def _profilers(self) -> list[protocol.ProfilerRow]:
        body: protocol.ProfileBody = self._debugger.view.request(protocol.Profile("list"))
        return body.profilers

    def open(self, path: str) -> None:
        """The report of a file, or of an artifact's folder."""
        if os.path.isfile(path):
            self._known.pop(path, None)  # another tool may have written it anew; adbg's own are written once
        self._main.app.push_screen(ReportScreen(path, self._known, self._go))

    def _go(self, screen: ReportScreen, where: SourceLine | str) -> None:
        """From the report to the source line, or to the node of that name; F5 comes back to the report as it was."""
        main, app = self._main, self._main.app
        if isinstance(where, SourceLine):
            main.code.show(where)
            panel = "source"
        else:
            rows = main.graph.model.rows
            index = next((at for at in sorted(rows) if rows[at].unique_name == where), 0)
            if not index:
                main.notify(f"{where} is not in the graph at hand", severity="warning", timeout=3, markup=False)
                return
            main.graph.go_to(index)
            panel = "graph"
        if screen is not self._left:
            self._forget()
            app.install_screen(screen, LEFT)  # else it would be gone once it is left
            self._left = screen
        while len(app.screen_stack) > 1:
            app.pop_screen()
        main.action_panel(panel, zoom=False)
        main.notify("F5 goes back to the report", timeout=3)

    def _forget(self) -> None:
        """The report that was left before."""
        left, self._left = self._left, None
        if left is not None:
            self._main.app.uninstall_screen(left)
            left.remove()

    def _back(self) -> bool:
        """To the report that was left for the source or the graph; False where there is none."""
        app, left = self._main.app, self._left
        if left is None or left in app.screen_stack:
            return False

        def closed(_: None) -> None:
            app.call_later(self._forget)

        app.push_screen(left, closed)
        return True
