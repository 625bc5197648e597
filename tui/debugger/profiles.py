"""Profiles of the program: what is said of them, and those profilers that are a process beside it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace

from adbg.engine.errors import AdbgError
from adbg.engine.protocol import messages as protocol
from adbg.profiles import registry
from adbg.profiles.base import META, Profiler
from adbg.profiles.folders import write_meta
from adbg.profiles.region import Region
from adbg.tui.debugger.process import Process
from adbg.tui.text.profile import state_text

LIVE = ("waiting", "ready", "running")


class Profiles:
    """Told of every change on the thread that reads the agent's messages. ``notice`` says (level, text); ``ended`` is
    told of each profile once, when its file is written."""

    def __init__(
        self, notice: Callable[[str, str], None], ended: Callable[[Process, protocol.ProfileState], None]
    ) -> None:
        self._notice = notice
        self._ended = ended
        self._beside: dict[Process, Profiler] = {}
        self.states: dict[Process, protocol.ProfileState] = {}

    def changed(self, process: Process, state: protocol.ProfileState) -> None:
        self.states[process] = state
        if state.state == "ready":
            threading.Thread(target=self._start, args=(process, state), name="adbg-profile", daemon=True).start()
        elif state.state not in LIVE:
            profiler = self._beside.pop(process, None)
            if profiler is not None:
                self._stop_beside(profiler, process, state)
            else:
                self._say(process, state)

    def lost(self, process: Process) -> None:
        """Its connection ended. What it has saved until then is kept."""
        state = self.states.pop(process, None)
        if state is None or state.state not in LIVE:
            return
        ended = replace(state, state="partial", why="the program ended in the region, without a word")
        profiler = self._beside.pop(process, None)
        if profiler is not None:
            self._stop_beside(profiler, process, ended)
            return
        file, kept = registry.make(state.profiler).file, False
        try:
            kept = os.path.getsize(os.path.join(state.folder, file)) > 0
            with open(os.path.join(state.folder, META)) as text:
                meta = json.load(text)
            write_meta(state.folder, {**meta, "state": "partial", "why": ended.why})
        except (OSError, ValueError):
            pass
        what = "what was saved until then is kept" if kept else "nothing was saved before"
        self._say(process, replace(ended, file=file if kept else "", why=f"{ended.why}: {what}"))

    def _say(self, process: Process, state: protocol.ProfileState) -> None:
        good = state.state == "done" and not state.warnings
        self._notice("info" if good else "warning", state_text(state))
        self._ended(process, state)

    def _start(self, process: Process, state: protocol.ProfileState) -> None:
        region = state.region
        problem = ""
        try:
            profiler = registry.make(state.profiler)
            profiler.pid = state.pid
            profiler.start(Region(region.kind, region.count, region.warmup, region.place, region.spec), state.folder)
            self._beside[process] = profiler
        except AdbgError as error:
            problem = str(error)
        try:
            process.client.request(protocol.Profile("go", folder=problem))
        except AdbgError:
            return  # the program is gone: its end is told

    def _stop_beside(self, profiler: Profiler, process: Process, state: protocol.ProfileState) -> None:
        threading.Thread(target=self._stop, args=(profiler, process, state), name="adbg-profile", daemon=True).start()

    def _stop(self, profiler: Profiler, process: Process, state: protocol.ProfileState) -> None:
        try:
            artifact = profiler.stop()
            self._say(process, replace(state, file=artifact.file))
        except (AdbgError, OSError) as error:
            self._say(process, replace(state, state="failed", why=str(error)))
