"""Stopping and continuing: the requests that move the program, and the events that say where it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages.registry import Empty, event, request
from adbg.engine.types import NodeStop


@dataclass(frozen=True, slots=True)
class ContinueBody:
    allThreadsContinued: bool = True


@request("continue", ContinueBody)
@dataclass(frozen=True, slots=True)
class Continue:
    threadId: int = 0


@request("next", Empty)
@dataclass(frozen=True, slots=True)
class Next:
    """Next node on this level (over nested backward calls); past the last one, into the next backward."""

    threadId: int = 0


@request("stepIn", Empty)
@dataclass(frozen=True, slots=True)
class StepIn:
    """Next node, into nested backward calls."""

    threadId: int = 0


@request("stepOut", Empty)
@dataclass(frozen=True, slots=True)
class StepOut:
    """``finish``: to the end of the enclosing PyLayer / nested backward (stops behind that node), or of this
    backward."""

    threadId: int = 0


@request("pause", Empty)
@dataclass(frozen=True, slots=True)
class Pause:
    """Stop at the next node; ``on`` False: not there after all. A stop may be on its way already."""

    threadId: int = 0
    on: bool = True


@request("adbg/after", Empty)
@dataclass(frozen=True, slots=True)
class After:
    """Run the current node and stop behind it."""

    threadId: int = 0


@request("adbg/until", Empty)
@dataclass(frozen=True, slots=True)
class Until:
    """Run until a node that matches ``spec`` (breakpoint grammar) comes, once."""

    spec: str
    threadId: int = 0


@dataclass(frozen=True, slots=True)
class ThreadState:
    id: int
    name: str
    adbg: str = ""  # "stopped", "running", "waiting" (parked behind another one)


@dataclass(frozen=True, slots=True)
class ThreadsBody:
    threads: list[ThreadState]


@request("threads", ThreadsBody)
@dataclass(frozen=True, slots=True)
class Threads:
    pass


@event("stopped")
@dataclass(frozen=True, slots=True)
class Stopped:
    """DAP's fields, and ``adbg``: the stop in full."""

    reason: str
    threadId: int
    allThreadsStopped: bool = True
    description: str = ""
    text: str = ""
    hitBreakpointIds: list[int] = field(default_factory=list)
    adbg: NodeStop | None = None


@event("continued")
@dataclass(frozen=True, slots=True)
class Continued:
    threadId: int
    allThreadsContinued: bool = True


@event("output")
@dataclass(frozen=True, slots=True)
class Output:
    """What the agent itself has to say (category "console", "important"); program output travels through the keeper."""

    output: str
    category: str = "console"


@event("adbg/backwardBegin")
@dataclass(frozen=True, slots=True)
class BackwardBegin:
    """Of every backward while something is armed; ``nodes`` is the number of nodes that will execute."""

    backward: int
    nodes: int
    roots: list[str]
    depth: int
    file: str = ""
    line: int = 0
    iteration: int = 0
    thread: int = 0
    truncated: bool = False  # more nodes run than ``nodes``: the walk was cut, and the rest is never seen


@event("adbg/backwardEnd")
@dataclass(frozen=True, slots=True)
class BackwardEnd:
    backward: int
    us: float
    error: str = ""
    depth: int = 0


@event("adbg/backwards")
@dataclass(frozen=True, slots=True)
class BackwardsRan:
    """Backward calls that ran to their ends and that nothing was armed in, one after the other from the same line: the
    first one's begin, and what each took (us). The n-th one's ``backward`` and ``iteration`` are n - 1 higher."""

    first: BackwardBegin
    us: list[float]


@dataclass(frozen=True, slots=True)
class NodeRan:
    index: int
    us: float | None = None
    norm: float | None = None
    nonfinite: bool = False


@event("adbg/nodes")
@dataclass(frozen=True, slots=True)
class NodesRan:
    """Batched progress: nodes that ran since the last one."""

    backward: int
    nodes: list[NodeRan]


@event("adbg/trace")
@dataclass(frozen=True, slots=True)
class Trace:
    """A tracepoint was hit. ``text`` is one line: phase, node, slots with shape and norm."""

    breakpoint: int
    text: str
    stop: NodeStop
