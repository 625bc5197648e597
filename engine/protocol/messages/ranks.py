"""A job of several ranks: what one of them does, in a few numbers, and how long its process groups wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages.registry import request


@dataclass(frozen=True, slots=True)
class CollectiveAt:
    """The collective that a rank is in (``running``), or that it ended last. ``seq`` counts those of its group."""

    op: str  # "all_reduce"
    seq: int
    group: str
    running: bool
    since: float  # seconds that it runs, or ended ago
    ranks: list[int] = field(default_factory=list)
    shape: list[int] | None = None
    dtype: str = ""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutSetting:
    seconds: float  # what adbg has set
    ago: float  # seconds since then


@dataclass(frozen=True, slots=True)
class GroupTimeout:
    """How long a collective of a process group waits for the other ranks. A collective that began keeps the time it
    began with: what is set now is for those to come."""

    framework: str
    group: str
    backend: str  # "gloo", "nccl"
    seconds: float
    own: float  # what the program has set; other than ``seconds`` while adbg has raised it
    adjustable: bool  # False: the framework has no way to change it
    settings: list[TimeoutSetting] = field(default_factory=list)  # the last ones, oldest first

    def of_one_begun(self, ago: float) -> float:
        """Seconds that a collective waits that began ``ago`` seconds before this was told."""
        return next((each.seconds for each in reversed(self.settings) if each.ago >= ago), self.own)


@dataclass(frozen=True, slots=True)
class RankState:
    """``index`` is the last node of the running backward that was seen (0: none), ``node`` its name while it runs.
    ``backward`` and ``iteration`` are counted also while nothing is armed."""

    backward: int = 0
    iteration: int = 0
    running: bool = False  # in a backward call, as far as such calls are reported
    stopped: bool = False
    index: int = 0
    total: int = 0
    node: str = ""
    rss: int = 0
    collective: CollectiveAt | None = None
    timeouts: list[GroupTimeout] = field(default_factory=list)


@request("adbg/state", RankState)
@dataclass(frozen=True, slots=True)
class State:
    """Answered without a stop, and without a tensor."""


@dataclass(frozen=True, slots=True)
class GroupTimeoutsBody:
    timeouts: list[GroupTimeout] = field(default_factory=list)


@request("adbg/groupTimeouts", GroupTimeoutsBody)
@dataclass(frozen=True, slots=True)
class GroupTimeouts:
    """``seconds``: let every group wait at least so long, from its next collective on (0: as the program has it); None:
    only ask. The end of the session puts everything back."""

    seconds: float | None = None
