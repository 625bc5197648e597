"""Times of a call's nodes as the backend wrote them down, without a hook in any of them: begin and end of each are read
right before and right behind the node's own work (``BackwardCall.collect``), so nothing of adbg's is in them."""

from __future__ import annotations

from collections.abc import Mapping

from adbg.engine.outside import own
from adbg.engine.session.running_call import Running

#: index in the execution order, name, key, us, gap before it in us, nodes inside it
Ran = tuple[int, str, int, float, float, int]


def collect(running: Running) -> bool:
    """Have the nodes of a call that begins written down. False: only hooks can tell of them."""
    try:
        return running.call.collect(norms=False)
    except own(Exception):
        return False


def ran(running: Running, begun_ns: int, inside: Mapping[int, int], hooked: Mapping[int, float]) -> list[Ran] | None:
    """The nodes of a call that is over, in the order in which they began; None where that cannot be told.

    Args:
        begun_ns: ``time.perf_counter_ns`` of the call's begin.
        inside: by key of a node, how many nodes ran in the calls that it made.
        hooked: by key, microseconds of the nodes that had hooks, for a breakpoint: what these took is not the node's.
    """
    try:
        batch = running.call.collected()
        if batch is None:
            return None
        found: list[Ran] = []
        ended: dict[int, int] = {}  # by thread: when its last node was done
        for row in batch:
            gap = (row.begin_ns - ended.get(row.thread, begun_ns)) / 1000
            ended[row.thread] = row.begin_ns + round(row.us * 1000)
            if row.index and not row.failed:
                name, us = running.call.name(row.key), hooked.get(row.key, row.us)
                found.append((row.index, name, row.key, us, max(gap, 0.0), inside.get(row.key, 0)))
        return found
    except own(Exception):
        return None
