"""Collectives: the ledger of one process, and where it stands in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages.registry import request
from adbg.engine.types import SourceLine


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of a ledger: a collective, or a send or receive, that this process called.

    Attributes:
        id: counts from 1 in this process; 0 for one that the ledger did not see.
        seq: number among the collectives of its group, from 1, the same on each rank of a program in step; 0 for a send
            or receive, and where it is not known.
        shape: of the first tensor; None where there is none (a barrier), or it is not known.
        reduce: "SUM", "MAX", ...; "" where nothing is reduced.
        peer: the root, source or destination, a rank of the job; None where there is none.
        state: "called" (the call did not return yet), "issued" (asynchronous, not waited for), "waiting" (in its
            ``wait``), "done", "failed", "unknown".
        node: the backward node in which it was called, "" outside of one.
        backward: the backward call in which it was called; 0 outside, and where it is not known.
        begun, ended: seconds since the epoch; None: not known, or not yet.
        source: who tells: "ledger", "flight recorder" (the framework's own), "frames" (the stack of its thread).
    """

    id: int
    group: str
    seq: int
    op: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    reduce: str = ""
    peer: int | None = None
    asynchronous: bool = False
    state: str = "unknown"
    place: SourceLine | None = None
    thread: int = 0
    node: str = ""
    backward: int = 0
    begun: float | None = None
    ended: float | None = None
    source: str = "ledger"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group that this process is in. ``issued``: number of its last collective; None: not known.
    ``timeout`` in seconds, None: none or not known."""

    name: str
    ranks: list[int]
    backend: str = ""
    description: str = ""
    issued: int | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class CollectivesBody:
    """Attributes:
    now: when all this was looked at, in seconds since the epoch.
    since: when this ledger began; None: there is none. ``total`` rows were ever in it.
    rows: the newest, in order.
    frames: the main thread's, innermost first; ``call`` the framework's function that it is in.
    cpu: seconds that the main thread has computed, or waited for a processor.
    gil: seconds that it took to get the GIL, about a switch interval (5 ms) where Python code runs.
    notes: what is not seen in this process.
    """

    rank: int | None
    pid: int
    now: float
    since: float | None = None
    total: int = 0
    groups: list[ProcessGroup] = field(default_factory=list)
    rows: list[Collective] = field(default_factory=list)
    frames: list[SourceLine] = field(default_factory=list)
    call: str = ""
    cpu: float = 0.0
    gil: float = 0.0
    backwards: int = 0
    node: str = ""
    stopped: bool = False
    notes: list[str] = field(default_factory=list)


@request("adbg/collectives", CollectivesBody)
@dataclass(frozen=True, slots=True)
class Collectives:
    """``last``: so many rows at most. ``history`` False: only what has not ended, and what is cheap to ask."""

    last: int = 200
    history: bool = True
