"""The order in which Paddle's engine executes nodes, predicted (pure functions; the thread that asks).

From paddle/fluid/eager/backward.cc, and observed on random graphs: a queue. The roots that no other root feeds go in
first; a node whose last consumer ran goes to the back, an accumulate node to the front. ``paddle.grad`` runs on a
copy of the graph cut down to what leads to the inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from adbg.engine.backends.common.order import waiting_counts


def execution_order(
    roots: Sequence[int],
    producers: Callable[[int], Sequence[int]],
    accumulates: Callable[[int], bool],
    needed: frozenset[int] | None = None,
) -> list[int]:
    """Keys of the nodes that will execute, in order.

    Args:
        roots: one entry per root tensor, a node may occur twice. producers: the nodes that a node's edges lead to, in
        order of slots and ranks, one entry per edge. accumulates: whether a node is an accumulate node. needed: with
        ``paddle.grad``, the nodes that execute (``needed_nodes``); None: all.
    """
    starts = list(dict.fromkeys(roots))
    waiting = waiting_counts(starts, producers, needed)
    queue = deque(key for key in starts if not waiting.get(key) and (needed is None or key in needed))
    order: list[int] = []
    while queue:
        key = queue.popleft()
        order.append(key)
        for below in producers(key):
            waiting[below] -= 1
            if waiting[below] == 0 and (needed is None or below in needed):
                if accumulates(below):
                    queue.appendleft(below)
                else:
                    queue.append(below)
    return order
