"""The order in which Paddle's engine executes nodes, predicted (pure functions; the thread that asks).

From paddle/fluid/eager/backward.cc, and observed on random graphs: a queue. The roots that no other root feeds go in
first; a node whose last consumer ran goes to the back, an accumulate node to the front. ``paddle.grad`` runs on a
copy of the graph cut down to what leads to the inputs.

And the order in which the forward made them (``MadeOrder``).
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


class MadeOrder:
    """A sort key: the order in which the forward made nodes. Numbers are asked for as nodes are compared.

    Most nodes have a number. Of the others (made before stacks were on, or by Paddle itself for a second derivative)
    it is known that they came after what they are made of; among themselves, against the execution.
    """

    def __init__(
        self, execution: Sequence[int], producers: Sequence[Sequence[int]], number: Callable[[int], int]
    ) -> None:
        """Args: number: of a node, counted in the forward; 0 where it has none."""
        self.position = {key: place for place, key in enumerate(execution)}
        for key in range(len(producers)):
            self.position.setdefault(key, len(self.position))  # does not run
        self._producers = producers
        self._number = number
        self._least: dict[int, int] = {}

    def told(self, key: int) -> bool:
        return self._number(key) > 0

    def __call__(self, key: int) -> tuple[int, bool, int]:
        number = self._number(key)
        return number or self._least_of(key), not number, -self.position[key]

    def _least_of(self, key: int) -> int:
        """The highest number among the nearest nodes with one that a node without is made of."""
        if not self._least:
            least = self._least
            for other in sorted(self.position, key=self.position.__getitem__, reverse=True):
                below = self._producers[other]
                least[other] = self._number(other) or max([least.get(each, 0) for each in below], default=0)
        return self._least[key]
