"""Nodes that ran and were not yet told to the front end (L2; filled by hooks, emptied by the writer and at stops)."""

from __future__ import annotations

import collections

from adbg.engine.protocol import NodeRan, NodesRan

_Row = tuple[int, int, "float | None", "float | None", bool]

LIMIT = 50_000  # nodes waiting; the oldest are lost first


class NodeHistory:
    """A queue between hooks and the writer: ``add`` costs one append (0.1 us)."""

    def __init__(self) -> None:
        self._waiting: collections.deque[_Row] = collections.deque(maxlen=LIMIT)

    def add(self, backward: int, index: int, us: float | None, norm: float | None, nonfinite: bool) -> None:
        self._waiting.append((backward, index, us, norm, nonfinite))

    def take(self) -> list[NodesRan]:
        """All that waits, one body per backward call in a row."""
        bodies: list[NodesRan] = []
        while self._waiting:
            try:
                backward, index, us, norm, nonfinite = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            if not bodies or bodies[-1].backward != backward:
                bodies.append(NodesRan(backward, []))
            bodies[-1].nodes.append(NodeRan(index, us, norm, nonfinite))
        return bodies
