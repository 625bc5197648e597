"""One profile, from the request to its artifact: its state, its clocks, what meta.json says of it."""

from __future__ import annotations

import os
import sys
import threading
import time
import types
from collections.abc import Sequence
from typing import Any

from adbg.engine.flag import Flag
from adbg.engine.protocol import messages as p
from adbg.profiles import machine
from adbg.profiles.base import Artifact, Profiler, region_meta
from adbg.profiles.placing import Placing
from adbg.profiles.region import Region
from adbg.profiles.turn import Turn

NOTHING = "nothing ran in the region: there is nothing to show"
LIVE = ("waiting", "ready", "running")
SAVE = 2.0  # seconds between two savings of what was measured, and at least 50 times what one takes


class Measurement:
    """Begun, saved and ended by ``Course``, by the thread that has its ``turn``. Each change is one store: whoever
    comes behind an exception of the program's finds how far it went."""

    def __init__(self, profiler: Profiler, region: Region, folder: str, placing: Placing, step: types.CodeType) -> None:
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
        self.turn = Turn(step)  # of whoever begins, saves or ends it
        self.asked_to_end: tuple[str, ...] = ()  # (why,): by whom has the turn, or gets it next
        self.ends_now = self.dropped = False  # its end was begun; nobody wants it
        self.started = False  # its profiler is at work
        self.told = self.gone = False  # its end was told; nothing is left of it that hears of the program
        self.artifact: Artifact | None = None
        self.seconds = 0.0
        self.begun = self.saved = self.next_save = 0.0
        self._monotonic = self._cpu = 0.0
        self._took: tuple[float, float] | None = None  # seconds, and those of CPU time, when it was over
        self.machine = machine.Machine()
        self._facts: dict[str, Any] = {}
        self.go = Flag()
        self.over = Flag()

    @property
    def running(self) -> bool:
        """It measures: its region has begun, and nobody ends it."""
        return self.state == "running" and not self.closing

    @property
    def closing(self) -> bool:
        """Its end is under way. Where an exception came into that it is to be asked for again."""
        return self.ends_now and self.turn.taken

    @property
    def may_end_here(self) -> bool:
        """On this thread."""
        profiler, here = self.profiler, threading.get_ident()
        return not profiler.bound or profiler.ends_anywhere or self.thread == here or not lives(self.thread)

    def begins(self) -> None:
        self.thread = threading.get_ident()
        self.state = "running"
        self.machine = machine.Machine()
        self.begun = time.time()

    def start(self) -> None:
        """The last that is done before the region: what follows is measured."""
        self._cpu = time.process_time()
        self._monotonic = time.monotonic()
        self.next_save = self._monotonic + SAVE
        self.profiler.start(self.region, self.folder)
        self.started = True

    def stop(self) -> None:
        """The first that is done behind it; again where an exception came into it."""
        if self._took is None:
            self._took = time.monotonic() - self._monotonic, time.process_time() - self._cpu
        if self.artifact is None:
            self.artifact = self.profiler.stop()
        self.seconds = self._took[0]
        self._facts = self.machine.facts()  # before the program's threads are where they were

    def note_displaced(self) -> None:
        """What the profiler found in its place at the end."""
        said = self.artifact.meta.get("displaced") if self.artifact is not None else None
        if said:
            self.warn(said)

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
            self.warn(stays)

    def warn(self, *said: str) -> None:
        """Once, also where its end is gone through twice."""
        self.warnings = [*self.warnings, *(each for each in said if each not in self.warnings)]

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
            self.warn(*machine.warnings(facts))
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
            "cpu_seconds": self._took[1] if self._took is not None else 0.0,
            "iterations": self.iterations,
            "machine": facts,
            "warnings": self.warnings,
            **(artifact.meta if artifact is not None else {}),
        }


def lives(thread: int) -> bool:
    """It runs Python, or waits in it."""
    return thread in sys._current_frames()


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
