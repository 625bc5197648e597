"""What goes into a verdict, and the verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from adbg.engine.hang.branch import Branch
from adbg.engine.hang.conditioned import Condition
from adbg.engine.hang.left_loop import LeftLoop
from adbg.engine.protocol.messages import Collective, CollectivesBody
from adbg.engine.types import SourceLine


class HangKind(str, enum.Enum):
    """Best explained first."""

    DIED = "rank-died"  # a rank that others wait for is gone, and did not end by itself
    STOPPED = "stopped"  # a rank that others wait for stands at a stop of this debugger's
    MISMATCH = "mismatch"  # ranks called different collectives at the same number
    COUNTS = "different-counts"  # a rank called fewer than the others: it ended, or went on to what comes behind
    DEADLOCK = "deadlock"  # ranks wait for each other in different groups
    LONG_KERNEL = "long-kernel"  # a rank computes in one call of the framework
    SLOW = "slow-rank"  # a rank is on its way: it moves, or computes
    MISSING = "missing-rank"  # a rank is somewhere else, and does not move
    UNKNOWN = "unknown"  # ranks wait, and it is not known why
    IDLE = "idle"  # nobody waits in a collective, and nobody moves
    NOTHING = "nothing"


class Life(str, enum.Enum):
    """Of a rank's process. SILENT: it is there and does not answer (its GIL is held); DIED: it is gone, for certain;
    LOST: the connection is, and the process may run on; UNKNOWN: not entered."""

    RUNNING = "running"
    STOPPED = "stopped"
    SILENT = "silent"
    ENDED = "ended"
    DIED = "died"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank, looked at twice; ``before`` None: it did not answer then. ``recorded``: its record was read instead, at
    its end. ``how`` it ended, as far as it is known."""

    rank: int
    life: Life
    pid: int = 0
    at: CollectivesBody | None = None
    before: CollectivesBody | None = None
    how: str = ""
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rank stands.

    Attributes:
        waits: the collective that it is in, and was in a look before; None: it waits in none.
        place, call: the innermost line of its main thread, and the framework's function called there.
        moved: something of it changed between the looks; None: looked at once.
        cpu: share of the time that its main thread computed; None: not known.
        native: it computes outside of Python: in one call of a library's.
        last: the newest collective that it called, if it waits in none.
        issued: number of the last collective that it issued in the group of the verdict; None: not known.
        seconds: how long it waits, as far as its begin is known.
    """

    rank: int
    life: Life
    pid: int = 0
    how: str = ""
    waits: Collective | None = None
    place: SourceLine | None = None
    call: str = ""
    moved: bool | None = None
    cpu: float | None = None
    native: bool = False
    last: Collective | None = None
    issued: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first collective of a group that two ranks have differently. ``differ``: "op", "shape", "dtype", "reduce",
    "peer"."""

    group: str
    seq: int
    differ: tuple[str, ...]
    rows: dict[int, Collective]


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """Attributes:
    culprits: the ranks that the others wait for, or that differ.
    waiting: the ranks that wait.
    missing: ranks of the group of which nothing is known.
    calls: at COUNTS, how often each rank called the line that one of them called once more.
    calls_from: the number of the group from which these are counted: what is known of every rank.
    cycle: at DEADLOCK, ranks in order: each waits for the next, the last for the first.
    condition: on the rank, under which the source has the call of those that differ or wait.
    left: at COUNTS, the loop that the culprits have left, and the others have not.
    branch: the condition on its data under which a rank comes to what others passed by.
    """

    kind: HangKind
    confidence: float = 0.0
    group: str = ""
    description: str = ""
    group_ranks: tuple[int, ...] = ()
    collective: Collective | None = None
    waiting: tuple[int, ...] = ()
    culprits: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    calls: dict[int, int] = field(default_factory=dict)
    calls_from: int = 1
    divergence: Divergence | None = None
    condition: Condition | None = None
    standings: tuple[Standing, ...] = ()
    timeout: float | None = None
    notes: tuple[str, ...] = ()
    left: LeftLoop | None = None
    branch: Branch | None = None
