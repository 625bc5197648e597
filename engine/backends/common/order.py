"""What every prediction of an execution order needs. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def waiting_counts(
    starts: Iterable[int], producers: Callable[[int], Sequence[int]], needed: frozenset[int] | None = None
) -> dict[int, int]:
    """By key, the edges that lead to a node from nodes that run; ``needed``: those nodes, None for all."""
    waiting: dict[int, int] = {}
    seen = set(starts)
    todo = list(seen)
    while todo:
        key = todo.pop()
        if needed is not None and key not in needed:
            continue
        for below in producers(key):
            waiting[below] = waiting.get(below, 0) + 1
            if below not in seen:
                seen.add(below)
                todo.append(below)
    return waiting


def needed_nodes(wanted: Sequence[int], producers: Sequence[Sequence[int]], inclusive: bool = False) -> frozenset[int]:
    """The nodes on a path to ``wanted``: those run where only the gradients of ``wanted`` are asked for.

    ``inclusive``: ``wanted`` themselves run too; else only where they lead on to another of them.
    """
    consumers: dict[int, list[int]] = {}
    for key, below in enumerate(producers):
        for producer in below:
            consumers.setdefault(producer, []).append(key)
    needed = set(wanted) if inclusive else set()
    todo = list(wanted)
    while todo:
        for key in consumers.get(todo.pop(), ()):
            if key not in needed:
                needed.add(key)
                todo.append(key)
    return frozenset(needed)
