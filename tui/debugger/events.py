"""What a ``Debugger`` tells its listeners: frozen values, delivered in order on the debugger's dispatcher thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adbg.engine.protocol.messages import (
    BackwardBegin,
    BackwardEnd,
    Finding,
    Framework,
    Growth,
    NodeRan,
    ProfileState,
)
from adbg.engine.types import ExitStatus, NodeStop

if TYPE_CHECKING:
    from adbg.tui.debugger.breakpoint_list import Breakpoint
    from adbg.tui.debugger.process import Process


@dataclass(frozen=True, slots=True)
class Started:
    """The script was let go (after ``adbg run``), or an attach is complete."""


@dataclass(frozen=True, slots=True)
class ProcessJoined:
    """Another process of the program connected (a rank, a worker), or the main one did."""

    process: Process


@dataclass(frozen=True, slots=True)
class ProcessLeft:
    process: Process


@dataclass(frozen=True, slots=True)
class Stopped:
    """``process`` became the current one and stands at ``stop``."""

    process: Process
    stop: NodeStop


@dataclass(frozen=True, slots=True)
class StopQueued:
    """``process`` stopped while another one is being looked at; it waits its turn (``process N`` goes there)."""

    process: Process
    stop: NodeStop


@dataclass(frozen=True, slots=True)
class RanksChanged:
    """What is known of the ranks was asked again, or one of them is held with the others."""


@dataclass(frozen=True, slots=True)
class Resumed:
    process: Process


@dataclass(frozen=True, slots=True)
class Output:
    """The program's own output. ``stream`` is "stdout" or "stderr"; in a pty both come as "stdout". ``data`` are
    the bytes as written;
    ``text`` the same as UTF-8, a character cut at the end of a chunk coming with the next one."""

    stream: str
    text: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Trace:
    """A tracepoint was hit."""

    process: Process
    breakpoint: int
    text: str
    stop: NodeStop


@dataclass(frozen=True, slots=True)
class BackwardBegan:
    process: Process
    begin: BackwardBegin


@dataclass(frozen=True, slots=True)
class BackwardEnded:
    process: Process
    end: BackwardEnd


@dataclass(frozen=True, slots=True)
class NodesRan:
    process: Process
    backward: int
    nodes: tuple[NodeRan, ...]


@dataclass(frozen=True, slots=True)
class FrameworkFound:
    process: Process
    framework: Framework


@dataclass(frozen=True, slots=True)
class BreakpointsChanged:
    breakpoints: tuple[Breakpoint, ...]


@dataclass(frozen=True, slots=True)
class FramesShown:
    """Stacks show the framework's frames too (``all``), or the user's alone: lines are to be asked for again."""

    all: bool


@dataclass(frozen=True, slots=True)
class FrameChanged:
    """Another frame was selected (``up``, ``down``, ``frame N``)."""

    index: int


@dataclass(frozen=True, slots=True)
class SelectionChanged:
    """Another node of the graph was selected: its index in the execution order, 0 for none."""

    index: int


@dataclass(frozen=True, slots=True)
class ShownChanged:
    """The display or the watch list changed."""


@dataclass(frozen=True, slots=True)
class GraphMarked:
    """A region of the current graph was captured: the marks of its rows changed."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A gradient or a variable was changed (``set``, ``!``): values shown must be read again."""


@dataclass(frozen=True, slots=True)
class MemoryGrows:
    """A variable of ``process`` holds more with each iteration. Once of each variable."""

    process: Process
    growth: Growth


@dataclass(frozen=True, slots=True)
class Notice:
    """What adbg itself has to say. ``level`` is "info", "warning" or "error"."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class ProfileChanged:
    """How far the profile of ``process`` is."""

    process: Process
    state: ProfileState


@dataclass(frozen=True, slots=True)
class Found:
    """Diagnosis of ``process`` is sure of something, or has more to say of it (the same ``id``)."""

    process: Process
    finding: Finding
    what: str = "told"  # or "changed", "taken back"
    of_job: bool = False  # several ranks show it together, and this one was the last to tell its part
    listed: bool = False  # in the answer to a command that is under way

    @property
    def worth_a_line(self) -> bool:
        """Of its own, for people: it is new, no consequence of another, and is listed nowhere."""
        new = self.what == "taken back" or (self.what == "told" and not self.listed)
        return new and self.finding.victim_of is None

    @property
    def rank(self) -> int | None:
        """Whose it is, where it is one's."""
        return None if self.of_job else self.process.info.rank


@dataclass(frozen=True, slots=True)
class DiagnosisEnded:
    """Nothing more will be found in ``process``."""

    process: Process


@dataclass(frozen=True, slots=True)
class ProfileEnded:
    """The profile of ``process`` is over, whichever process measured it. ``state.file`` is there, "" for none."""

    process: Process
    state: ProfileState


@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended. ``run`` is the debugger's ``run`` of it, ``ended_by`` the command that ended it ("kill",
    "restart"), "" when it ended itself."""

    status: ExitStatus
    run: int = 0
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class Detached:
    """The debugger let go of the program, which runs on."""


Event = (
    Started
    | ProcessJoined
    | ProcessLeft
    | Stopped
    | StopQueued
    | RanksChanged
    | Resumed
    | Output
    | Trace
    | BackwardBegan
    | BackwardEnded
    | NodesRan
    | FrameworkFound
    | BreakpointsChanged
    | FrameChanged
    | FramesShown
    | SelectionChanged
    | ShownChanged
    | GraphMarked
    | Edited
    | Notice
    | MemoryGrows
    | ProfileChanged
    | Found
    | DiagnosisEnded
    | ProfileEnded
    | Exited
    | Detached
)
