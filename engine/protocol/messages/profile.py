"""Profiling: what is measured, by what, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages.registry import event, request


@dataclass(frozen=True, slots=True)
class ProfileRegion:
    """See ``adbg.profiles.region.Region``."""

    kind: str = "run"
    count: int = 0
    warmup: int = 0
    place: str = ""
    spec: str = ""


@dataclass(frozen=True, slots=True)
class ProfilerRow:
    """A profiler, and whether it can run in this process; ``where`` "outside": it is a process beside the program."""

    name: str
    what: str
    where: str
    ok: bool
    why: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ProfileState:
    """``state``: "idle", "waiting" (the region has not begun), "ready" (held at its begin until a profiler beside the
    program runs), "running", "done", "partial" (ended early: ``why``), "failed" (``why``). ``file`` is empty where
    nothing was measured; ``iterations`` have passed in the region. ``rank``: of a job's process."""

    state: str = "idle"
    profiler: str = ""
    region: ProfileRegion = field(default_factory=ProfileRegion)
    folder: str = ""
    file: str = ""
    format: str = ""
    iterations: int = 0
    seconds: float = 0.0
    why: str = ""
    warnings: list[str] = field(default_factory=list)
    pid: int = 0
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class ProfileBody:
    state: ProfileState
    profilers: list[ProfilerRow] = field(default_factory=list)


@request("adbg/profile", ProfileBody)
@dataclass(frozen=True, slots=True)
class Profile:
    """``action``: "start", "stop" (end the region now), "state", "list" (with ``profilers``), "go" (the profiler beside
    the program runs: the region may begin), "drop" (as if it had not been asked for: this process only starts the ranks
    of a job). ``folder``: the artifact's folder is made in it; "": in the run directory, else in the working
    directory."""

    action: str = "state"
    profiler: str = ""
    region: ProfileRegion = field(default_factory=ProfileRegion)
    folder: str = ""
    cores: str = ""  # "0,2-3": the program's threads run on these meanwhile; "": where they may
    nice: int | None = None  # their priority meanwhile; None: as it is


@event("adbg/profile")
@dataclass(frozen=True, slots=True)
class ProfileChanged:
    """The state is another one now."""

    state: ProfileState
