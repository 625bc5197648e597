"""What the nodes of a backward did, as a backend wrote it down without a hook in Python: rows of plain numbers, in
batches. A batch holds no node and no call: any thread may have it, and the record keeps it as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

#: key, index, begin (ns), norm, microseconds, flags, thread
ROW = struct.Struct("<IIQdfHH")
HAS_NORM, NONFINITE, FAILED = 1, 2, 4


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node that ran.

    Attributes:
        index: position in the execution order, from 1; 0 when the node is not in it.
        begin_ns: as ``time.perf_counter_ns`` counts; the script's hooks in front of the node run behind it.
        us: microseconds until it had made its gradients; until the exception where ``failed``.
        norm: 2-norm of the first defined incoming gradient, as the node was given it; None when it has none.
        nonfinite: some element of that gradient is NaN or infinite.
        thread: which of the threads that run nodes, from 1 in the order in which they came.
    """

    key: int
    index: int
    begin_ns: int
    us: float
    norm: float | None
    nonfinite: bool
    failed: bool
    thread: int


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """Nodes in the order in which they began. ``rows``: packed as ``ROW``; ``lost``: how many more there were, for
    which there was no room."""

    rows: bytes
    lost: int = 0

    def __len__(self) -> int:
        return len(self.rows) // ROW.size

    def __iter__(self) -> Iterator[NodeRow]:
        for key, index, begin, norm, us, flags, thread in ROW.iter_unpack(self.rows):
            known = norm if flags & HAS_NORM else None
            yield NodeRow(key, index, begin, us, known, bool(flags & NONFINITE), bool(flags & FAILED), thread)
