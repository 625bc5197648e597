"""In which order will the engine execute a graph? A simulation of libtorch's ready queue; pure Python, no tensor, any
thread.

The engine counts, for every node, the edges that lead to it, and pushes a node on a priority queue when the last of
them has delivered. The queue is a ``std::priority_queue`` ordered by sequence number (torch/csrc/autograd/engine.h,
CompareNodeTaskTime; accumulate nodes have the highest number there is). Equal numbers come out as the binary heap of
the C++ library happens to hold them, so its push_heap and pop_heap are done here step by step (libstdc++'s
bits/stl_heap.h).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adbg.engine.backends.common.order import waiting_counts


def push(heap: list[tuple[int, int]], item: tuple[int, int]) -> None:
    """``std::push_heap`` on (priority, key) pairs, highest priority on top."""
    heap.append(item)
    _sift_up(heap, len(heap) - 1, item)


def _sift_up(heap: list[tuple[int, int]], hole: int, item: tuple[int, int]) -> None:
    parent = (hole - 1) // 2
    while hole > 0 and heap[parent][0] < item[0]:
        heap[hole] = heap[parent]
        hole = parent
        parent = (hole - 1) // 2
    heap[hole] = item


def pop(heap: list[tuple[int, int]]) -> tuple[int, int]:
    """``std::pop_heap`` and ``pop_back``: the hole at the top goes down to a leaf, then the last item comes up from
    there."""
    top = heap[0]
    item = heap.pop()
    size = len(heap)
    if size == 0:
        return top
    hole = child = 0
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * (child + 1)
        heap[hole] = heap[child - 1]
        hole = child - 1
    _sift_up(heap, hole, item)
    return top


def execution_order(
    roots: Sequence[int],
    producers: Callable[[int], Sequence[int]],
    priority: Callable[[int], int],
    needed: frozenset[int] | None = None,
    captured: frozenset[int] = frozenset(),
) -> list[int]:
    """Keys of the nodes that will execute, in order.

    Args:
        roots: one entry per root edge (a node may occur twice). producers: the nodes that a node's edges lead to, one
        entry per valid edge. priority: the sequence number. needed: with ``inputs=``, the nodes that execute
        (``needed_nodes``); None: all. captured: with ``autograd.grad``, the nodes whose gradient is handed out: they
        pass through the queue without executing.
    """
    waiting = waiting_counts(roots, producers)
    if len(roots) > 1:  # a GraphRoot node stands in front of them, its edges count
        for key in roots:
            waiting[key] = waiting.get(key, 0) + 1
    heap: list[tuple[int, int]] = []
    order: list[int] = []

    def deliver(keys: Sequence[int]) -> None:
        for key in keys:
            waiting[key] -= 1
            if waiting[key] == 0 and (needed is None or key in needed or key in captured):
                push(heap, (priority(key), key))

    if len(roots) > 1:
        deliver(roots)
    elif roots:
        push(heap, (priority(roots[0]), roots[0]))
    while heap:
        key = pop(heap)[1]
        if needed is not None and key not in needed:
            continue
        order.append(key)
        deliver(producers(key))
    return order
