"""One profile, from the request to its artifact: its state, its clocks, what meta.json says of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from adbg.engine.protocol import messages as p
from adbg.profiles import machine
from adbg.profiles.base import Artifact, Profiler, region_meta
from adbg.profiles.placing import Placing
from adbg.profiles.region import Region

NOTHING = "nothing ran in the region: there is nothing to show"
LIVE = ("waiting", "ready", "running")
SAVE = 2.0  # seconds between two savings of what was measured, and at least 50 times what one takes


class Measurement:
    """Begun, saved and ended by ``Course``, by the thread that has its ``turn``."""

    def __init__(self, profiler: Profiler, region: Region, folder: str, placing: Placing) -> None:
        self.profiler = profiler
        self.region = region
        self.folder = folder
        self.placing = placing
        self.state = "waiting"
        self.why = ""
        self.warnings: list[str] = []
        self.thread = 0  # the one that is measured, of a bound profiler
        self.counted = 0  # the thread whose backward calls are counted
        self.ends = 0  # outermost backward calls that ended since the request
        self.iterations = 0
        self.passes = 0  # of a line region
        self.given_up = False  # of a node that is run again
        self.ending: tuple[str, ...] = ()  # (why,): its thread is to end it
        self.turn = threading.Lock()  # of whoever begins, saves or ends it; taken by trying, never waited for
        self.asked_to_end: tuple[str, ...] = ()  # (why,): by whom has the turn, or gets it next
        self.closing = self.dropped = False  # its end is under way; nobody wants it
        self.artifact: Artifact | None = None
        self.seconds = 0.0
        self.begun = self.saved = self.next_save = 0.0
        self._monotonic = self._cpu = 0.0
        self.machine = machine.Machine()
        self._facts: dict[str, Any] = {}
        self.go = threading.Event()
        self.over = threading.Event()

    @property
    def running(self) -> bool:
        """It measures: its region has begun, and nobody ends it."""
        return self.state == "running" and not self.closing

    def begins(self) -> None:
        self.state = "running"
        self.thread = threading.get_ident()
        self.machine = machine.Machine()
        self.begun = time.time()

    def start(self) -> None:
        """The last that is done before the region: what follows is measured."""
        self._cpu = time.process_time()
        self._monotonic = time.monotonic()
        self.next_save = self._monotonic + SAVE
        self.profiler.start(self.region, self.folder)

    def stop(self) -> None:
        """The first that is done behind it."""
        seconds, cpu = time.monotonic(), time.process_time()
        self.artifact = self.profiler.stop()
        self.seconds, self._cpu = seconds - self._monotonic, cpu - self._cpu
        self._facts = self.machine.facts()  # before the program's threads are where they were

    def note_displaced(self) -> None:
        """What the profiler found in its place at the end."""
        said = self.artifact.meta.get("displaced") if self.artifact is not None else None
        if said:
            self.warnings.append(said)

    def nothing(self) -> str:
        """Why nothing was measured; "" where something was. What says little is a warning."""
        artifact = self.artifact
        remark = artifact.remark if artifact is not None else ""
        if artifact is not None and artifact.file:
            if remark:
                self.warnings.append(remark)
            return ""
        # what is measured from outside comes later
        return "" if self.profiler.where == "outside" else remark or NOTHING

    def put_back(self) -> None:
        """Cores and priority."""
        stays = self.placing.restore()
        if stays:
            self.warnings.append(stays)

    def unfinished(self, what: str) -> str:
        """What a profile is told to lack that ``what`` ("the program ended") ends now; "" if nothing."""
        if self.state != "running":
            return f"{what} before the region began: {self.region}"
        if self.region.kind == "iterations":
            return f"{what} after {self.iterations} of {self.region.count} iterations"
        return "" if self.region.kind == "run" else f"{what} in the region: {self.region}"

    def save_is_due(self) -> bool:
        return time.monotonic() >= self.next_save

    def save(self) -> None:
        """What was measured so far."""
        now = time.monotonic()
        self.next_save = now + SAVE  # also where that fails
        self.profiler.checkpoint()
        self.next_save = time.monotonic() + max(SAVE, 50 * (time.monotonic() - now))

    def meta(self, frameworks: Sequence[str], state: str, why: str) -> dict[str, Any]:
        artifact = self.artifact
        facts = self._facts or self.machine.facts()
        if state != "running":
            self.warnings = [*self.warnings, *machine.warnings(facts)]
        return {
            "adbg": 1,
            "profiler": self.profiler.name,
            "file": artifact.file if artifact is not None else self.profiler.file,
            "format": self.profiler.format,
            "region": region_meta(self.region),
            "state": state,
            "why": why,
            "framework": ", ".join(frameworks),
            "pid": os.getpid(),
            "begun": self.begun,
            "seconds": self.seconds,
            "cpu_seconds": self._cpu,
            "iterations": self.iterations,
            "machine": facts,
            "warnings": self.warnings,
            **(artifact.meta if artifact is not None else {}),
        }


def displaced_by(other: str) -> str:
    return f"the program itself starts {other}, beside which this profile cannot go on"


def told(now: Measurement | None, rank: int | None) -> p.ProfileState:
    if now is None:
        return p.ProfileState()
    artifact = now.artifact
    return p.ProfileState(
        now.state,
        now.profiler.name,
        p.ProfileRegion(**region_meta(now.region)),
        now.folder,
        artifact.file if artifact is not None else "",
        now.profiler.format,
        now.iterations,
        now.seconds,
        now.why,
        list(now.warnings),
        os.getpid(),
        rank,
    )
