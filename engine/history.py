"""Events that wait for the writer: calls that began and ended, nodes that ran (L2; filled by hooks, emptied by the
writer and at stops).

One message an event would wake the writer at each of them, and it would take Python's lock from a thread that gives it
up for a moment at every operator: under one breakpoint, Paddle steps of 0.27 ms took 1.9 times as long that way, and
1.5 times with batches. So events go together: the first few of 50 ms at once, the rest after it (``transport``).
"""

from __future__ import annotations

import collections
from typing import Any

from adbg.engine.protocol import NodeRan, NodesRan

_Row = tuple[int, int, "float | None", "float | None", bool]

LIMIT = 50_000  # events waiting; the oldest are lost first


class History:
    """A queue between hooks and the writer: an event costs one append (0.1 us)."""

    def __init__(self) -> None:
        self._waiting: collections.deque[_Row | Any] = collections.deque(maxlen=LIMIT)

    def node(self, backward: int, index: int, us: float | None, norm: float | None, nonfinite: bool) -> None:
        """A node ran."""
        self._waiting.append((backward, index, us, norm, nonfinite))

    def add(self, body: Any) -> None:
        """Any other event, to be sent as it is."""
        self._waiting.append(body)

    def take(self) -> list[Any]:
        """All that waits, in order; nodes in one body per backward call in a row."""
        bodies: list[Any] = []
        nodes: NodesRan | None = None
        while self._waiting:
            try:
                waiting = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            if type(waiting) is not tuple:
                nodes = None
                bodies.append(waiting)
                continue
            backward, index, us, norm, nonfinite = waiting
            if nodes is None or nodes.backward != backward:
                nodes = NodesRan(backward, [])
                bodies.append(nodes)
            nodes.nodes.append(NodeRan(index, us, norm, nonfinite))
        return bodies
