"""Events that wait for the writer: calls that began and ended, nodes that ran (filled by hooks, emptied by the
writer and at stops).

One message an event would wake the writer at each of them, and it would take Python's lock from a thread that gives it
up for a moment at every operator: under one breakpoint, Paddle steps of 0.27 ms took 1.9 times as long that way, and
1.5 times with batches. So events go together: the first few of 50 ms at once, the rest after it (``connection``).
"""

from __future__ import annotations

import collections
from typing import Any

from adbg.engine.protocol.messages import BackwardBegin, BackwardEnd, BackwardsRan, NodeRan, NodesRan
from adbg.engine.types import BriefCall, BriefRun, BriefRuns

_Row = tuple[int, int, "float | None", "float | None", bool]

LIMIT = 50_000  # events waiting; the oldest are lost first


class EventQueue:
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
        """All that waits, in order; nodes in one body per backward call in a row, calls that were not looked into in
        one per line of the program (one by one they took a twentieth of a step of 0.27 ms from the program)."""
        bodies: list[Any] = []
        nodes: NodesRan | None = None
        last: BriefRun | None = None  # the one at the end of the last body
        while self._waiting:
            try:
                waiting = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                break
            if type(waiting) is tuple:
                backward, index, us, norm, nonfinite = waiting
                if nodes is None or nodes.backward != backward:
                    nodes = NodesRan(backward, [])
                    bodies.append(nodes)
                nodes.nodes.append(NodeRan(index, us, norm, nonfinite))
                last = None
                continue
            nodes = None
            if type(waiting) is BriefRuns:
                bodies.append(BackwardsRan(_begin(waiting.call), list(waiting.us)))
                last = None
                continue
            if type(waiting) is BriefRun and not waiting.told and not waiting.error:
                if last is not None and _follows(waiting.call, last.call):
                    bodies[-1].us.append(waiting.us)
                else:
                    bodies.append(BackwardsRan(_begin(waiting.call), [waiting.us]))
                last = waiting
                continue
            last = None
            bodies += _bodies(waiting)
        return bodies


def _follows(call: BriefCall, before: BriefCall) -> bool:
    return (
        call.number == before.number + 1
        and call.iteration == before.iteration + 1
        and call.line == before.line
        and call.nodes == before.nodes
        and call.roots == before.roots
        and call.thread == before.thread
        and call.file == before.file
    )


def _bodies(waiting: Any) -> list[Any]:
    if type(waiting) is BriefRun:
        call = waiting.call
        end = BackwardEnd(call.number, waiting.us, waiting.error, 0)
        return [end] if waiting.told else [_begin(call), end]
    return [_begin(waiting) if type(waiting) is BriefCall else waiting]


def _begin(call: BriefCall) -> BackwardBegin:
    return BackwardBegin(
        call.number, call.nodes, list(call.roots), 0, call.file, call.line, call.iteration, call.thread
    )
