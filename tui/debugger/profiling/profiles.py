"""Profiles of the program: what is said of them, and those profilers that are a process beside it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.engine.protocol import messages as protocol
from adbg.profiles import registry
from adbg.profiles.base import META, Profiler, region_meta
from adbg.profiles.folders import make_folder, parent_folder, reason, write_meta
from adbg.profiles.machine import Machine, slow_cores
from adbg.profiles.region import Region
from adbg.tui.debugger.process import Process

LIVE = ("waiting", "ready", "running")


class Profiles:
    """Told of every change on the thread that reads the agent's messages. ``notice`` says (level, text) of
    ranks; ``ended`` is told of each profile once, when its file is written."""

    def __init__(
        self, notice: Callable[[str, str], None], ended: Callable[[Process, protocol.ProfileState], None]
    ) -> None:
        self._notice = notice
        self._ended = ended
        self._beside: dict[Process, Profiler] = {}
        self.states: dict[Process, protocol.ProfileState] = {}
        self.ranks: frozenset[int] | None = frozenset((0,))  # of a job those that are profiled; None: all
        self._asked: tuple[Process, protocol.Profile] | None = None
        self._followed: set[int] = set()
        self.begun = 0  # profiles whose end ``ended`` is told of, some day; known before the request is answered
        self._untold: set[Process] = set()

    def begin(self) -> None:
        """The program starts."""
        self._asked, self._followed = None, set()

    def asked(self, process: Process, request: protocol.Profile) -> None:
        """A profile was asked for, of this process; in the end it may be what starts the ranks of a job."""
        self._asked, self._followed = (process, request), set()

    def joined(self, process: Process) -> None:
        """Of a job the ranks are meant, not their launcher. Not on the thread that reads what ``process`` says."""
        if self._asked is None or process.info.rank is None:
            return
        (launcher, request), rank = self._asked, process.info.rank
        state = self.states.get(launcher)
        if process is launcher or launcher.info.rank is not None or rank in self._followed:
            return  # a rank's own children have its number too
        if self.ranks is not None and rank not in self.ranks:
            return
        begun = state is not None and state.state == "running" and request.region.kind not in ("run", "seconds")
        if not self._followed and (state is None or state.state not in LIVE or begun):
            return
        self._followed.add(rank)
        if state is not None and state.folder:  # a rank does not record yet
            self._asked = launcher, (request := replace(request, folder=os.path.dirname(state.folder)))
        with suppress(AdbgError):
            launcher.client.request(protocol.Profile("drop"))
        self.states.pop(launcher, None)
        self._count(launcher, -1)
        try:
            process.client.request(request)
            self._notice("info", f"profile {request.profiler}: of rank {rank}, process {process.info.pid}")
        except AdbgError as error:
            self._notice("error", f"rank {rank} is not profiled: {error}")

    def changed(self, process: Process, state: protocol.ProfileState) -> None:
        self.states[process] = state
        self._count(process, 1)
        if state.state not in LIVE:
            self._untold.discard(process)
        if state.state == "ready":
            threading.Thread(target=self._start, args=(process, state), name="adbg-profile", daemon=True).start()
        elif state.state not in LIVE:
            profiler = self._beside.pop(process, None)
            if profiler is not None:
                self._stop_beside(profiler, process, state)
            else:
                self._say(process, state)

    def _count(self, process: Process, by: int) -> None:
        if (process in self._untold) is (by < 0):
            self.begun += by
            (self._untold.add if by > 0 else self._untold.discard)(process)

    def lost(self, process: Process) -> None:
        """Its connection ended. What it has saved until then is kept."""
        state = self.states.pop(process, None)
        self._untold.discard(process)
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
        except OSError:
            pass
        _amend(state.folder, state="partial", why=ended.why)
        what = "what was saved until then is kept" if kept else "nothing was saved before"
        self._say(process, replace(ended, file=file if kept else "", why=f"{ended.why}: {what}"))

    def _say(self, process: Process, state: protocol.ProfileState) -> None:
        self._ended(process, state)

    def _start(self, process: Process, state: protocol.ProfileState) -> None:
        region = state.region
        problem = ""
        try:
            profiler = registry.make(state.profiler)
            profiler.pid = state.pid
            profiler.start(Region(region.kind, region.count, region.warmup, region.place, region.spec), state.folder)
            self._beside[process] = profiler
            self._still_wanted(profiler, process, state)
        except AdbgError as error:
            problem = str(error)
        except Exception as error:  # the program waits for "go", whatever happens here
            problem = f"{state.profiler} does not start: {reason(error, state.folder)}"
        try:
            process.client.request(protocol.Profile("go", folder=problem))
        except AdbgError:
            return  # the program is gone: its end is told

    def _still_wanted(self, profiler: Profiler, process: Process, state: protocol.ProfileState) -> None:
        """It took seconds to start: the profile may be over, without it, and it would go on for as long as adbg."""
        now = self.states.get(process)
        if now is not None and now.folder == state.folder and now.state in LIVE:
            return
        if self._beside.get(process) is profiler and self._beside.pop(process, None) is profiler:
            with suppress(AdbgError, OSError):
                artifact = profiler.stop()
                if artifact.file:
                    os.remove(os.path.join(state.folder, artifact.file))

    def _stop_beside(self, profiler: Profiler, process: Process, state: protocol.ProfileState) -> None:
        threading.Thread(target=self._stop, args=(profiler, process, state), name="adbg-profile", daemon=True).start()

    def _stop(self, profiler: Profiler, process: Process, state: protocol.ProfileState) -> None:
        try:
            artifact = profiler.stop()
            why = state.why or ("" if artifact.file else "nothing was sampled in the region")
            ended = replace(state, file=artifact.file, why=why, state=state.state if artifact.file else "partial")
            _amend(state.folder, file=artifact.file, state=ended.state, why=why, **artifact.meta)
            self._say(process, ended)
        except (AdbgError, OSError) as error:
            self._say(process, replace(state, state="failed", why=str(error)))


def measure_beside(profiler: Profiler, pid: int, seconds: float, run_dir: str) -> protocol.ProfileState:
    """A profile of a process in which nothing of adbg's is, made by ``profiler`` from outside. Ctrl-C ends it early.

    Raises:
        ProfileError: it cannot be read, or the folder not written.
    """
    folder = make_folder(parent_folder(os.path.abspath(run_dir) if run_dir else ""), profiler.name)
    region, began, why = Region("seconds", int(seconds)), time.time(), ""
    profiler.pid = pid
    try:
        profiler.start(region, folder)
    except AdbgError:
        os.rmdir(folder)
        raise
    looked = Machine()
    try:
        since = time.monotonic()
        while time.monotonic() - since < seconds and _lives(pid):
            time.sleep(0.05)
    except KeyboardInterrupt:
        why = "ended by Ctrl-C"
    took = time.monotonic() - since
    if not why and took < seconds:
        why = "the process ended in the region"
    facts = looked.facts()
    machine = {name: facts[name] for name in ("cores", "load", "mhz", "mhz_highest", "governor", "throttled")}
    artifact = profiler.stop()
    said = slow_cores(machine)  # whether others are busy is not known: the process itself is another here
    if artifact.meta.get("idle"):
        said.append("no thread of the process ran: these are the stacks in which its threads wait")
    if not artifact.file:
        why = "; ".join(filter(None, (why, "nothing was sampled")))
    state = protocol.ProfileState(
        "done" if not why else "partial",
        profiler.name,
        protocol.ProfileRegion(**region_meta(region)),
        folder,
        artifact.file,
        artifact.format,
        seconds=took,
        why=why,
        warnings=said,
        pid=pid,
    )
    facts = {"adbg": 1, "profiler": profiler.name, "file": artifact.file, "format": artifact.format, "pid": pid}
    facts |= {"region": region_meta(region), "state": state.state, "why": state.why, "begun": began, "seconds": took}
    write_meta(folder, {**facts, "machine": machine, "warnings": said, **artifact.meta})
    return state


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _amend(folder: str, **facts: Any) -> None:
    """In meta.json, what the program could not know of its own profile."""
    try:
        with open(os.path.join(folder, META)) as text:
            meta = json.load(text)
        write_meta(folder, {**meta, **facts})
    except (OSError, ValueError):  # the program died before it wrote one
        return
