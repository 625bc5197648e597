"""How many nodes of graphs that are still alive Python has touched. Runs on the threads that walk a graph.

torch 2.13 frees nodes that Python has touched by recursion, some 190 bytes of C stack a node, on the thread that lets
go of the graph, whichever that is. With the usual 8 MiB a chain of 40,000 was fine and one of 45,000 crashed the
process, even when it was only looked at. Untouched nodes in between do not end the recursion (30,000 touched, 20,000
not, 30,000 touched: crash), and a node once touched stays so. How deep a graph is cannot be told before it is touched,
so nodes are counted, over all walks: what may be related is taken together.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.torch import private

SAFE_NODES = 30_000
_MOST_NODES = 36_000  # when that many are taken, walks of deep graphs have their roots alone
SMALL = 1_000  # a walk of fewer nodes is not recorded; also the distance between the nodes that carry a record
_KEY = "adbg_touched"  # in node.metadata, a dict that lives and dies with the node


class Walked:
    """One walk, alive while a node that carries it is. ``whole``: it saw all there is below its roots."""

    __slots__ = ("__weakref__", "count", "roots", "whole")

    def __init__(self, roots: tuple[int, ...], count: int, whole: bool) -> None:
        self.roots = roots
        self.count = count
        self.whole = whole


class Ledger:
    """The walks whose nodes are alive. ``lock`` is held from the question for an allowance until the walk is
    recorded."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._alive: dict[int, weakref.ref[Walked]] = {}

    def abandon(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self.lock = threading.RLock()

    def allowance(self, roots: Sequence[Any]) -> int:
        """Nodes that a walk from ``roots`` may have. Walks that saw everything below them overlap in the worst case
        wholly (the longest counts), capped ones add up. The same roots again touch no other node than before."""
        before = _known(roots)
        if before is not None:
            return SAFE_NODES if before.whole else before.count
        return max(SAFE_NODES - self._taken(), self.first())

    def first(self) -> int:
        """Nodes that any walk may have, whatever its roots: small graphs can be walked beside a deep one."""
        return min(SMALL, max(1, _MOST_NODES - self._taken())) if self._alive else SMALL

    def _taken(self) -> int:
        walks = [walk for reference in list(self._alive.values()) if (walk := reference()) is not None]
        whole = max((walk.count for walk in walks if walk.whole), default=0)
        return whole + sum(walk.count for walk in walks if not walk.whole)

    def record(self, roots: Sequence[Any], nodes: Sequence[Any], whole: bool) -> None:
        """Let some of the nodes carry a record: the graph may lose its roots and live on below them."""
        if _known(roots) is not None:
            return
        walk = Walked(_identity(roots), len(nodes), whole)
        number, alive = id(walk), self._alive
        alive[number] = weakref.ref(walk, functools.partial(alive.pop, number))  # C alone: nothing is raised in it
        for node in (*roots, *nodes[SMALL - 1 :: SMALL]):
            if private.sequence(node) is not None:  # an accumulate node outlives the graph
                node.metadata[_KEY] = (*_carried(node), walk)


def _identity(roots: Sequence[Any]) -> tuple[int, ...]:
    return tuple(id(root) for root in roots)  # the Python object of a node stays the same while the node lives


def _carried(node: Any) -> tuple[Walked, ...]:
    metadata = getattr(node, "metadata", None)
    found: tuple[Walked, ...] = metadata.get(_KEY, ()) if metadata else ()
    return found


def _known(roots: Sequence[Any]) -> Walked | None:
    identity = _identity(roots)
    return next((walk for walk in _carried(roots[0]) if walk.roots == identity), None)
