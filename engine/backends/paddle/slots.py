"""Gradients as Paddle hands them over (per slot a tensor, or a list of tensors) and as adbg counts them: one flat
tuple.

Pure functions, called on the thread that runs backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import Hidden
from adbg.engine.backends.common.hooking import EdgesInto
from adbg.engine.backends.paddle.tensors import defined, is_tensor

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.graph import PaddleGraph

OVERWRITTEN = "the node may have written what it made over it"
LATER = "Paddle does not show what this node gives, only where it arrives"
SUMMED_UP = "Paddle does not show what this node gives, only the sum that it is part of"


def _each(slots: Sequence[Any]) -> Iterator[Any]:
    for value in slots:
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def flat_slots(slots: Sequence[Any]) -> tuple[Any, ...]:
    """Slots and ranks counted through; None for an undefined gradient (Paddle's tensor without storage)."""
    return tuple([value if is_tensor(value) and defined(value) else None for value in _each(slots)])


def replaced_slots(old: Sequence[Any], new: Sequence[Any], safe: Callable[[Any, Any], bool]) -> list[Any]:
    """Per slot what shall stand in for the old value, None to keep it. Whatever Paddle could not stand (a wrong number,
    shape, dtype, no tensor) is kept out here, however it came about."""
    if len(new) != len(old):
        return [None] * len(old)
    return [
        value if value is not None and value is not kept and safe(kept, value) else None
        for kept, value in zip(old, new, strict=True)
    ]


def rebuilt(slots: Sequence[Any], replaced: Sequence[Any]) -> tuple[Any, ...]:
    """``slots`` with the values that ``replaced`` has (flat, None: as it was), in the same structure."""
    values = iter(replaced)
    return tuple([_taken(value, values) for value in slots])


def _taken(value: Any, values: Iterator[Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)([_taken(item, values) for item in value])
    new = next(values)
    return value if new is None else new


def handed_on(gradients: Sequence[Any], replaced: Sequence[Any]) -> tuple[Any, ...]:
    """``gradients`` with the values that ``replaced`` has (None: as it was)."""
    return tuple([old if new is None else new for old, new in zip(gradients, replaced, strict=True)])


# ---- what flowed in and out, where Paddle does not say


def arrived(inputs: tuple[Any, ...], outputs: Sequence[Any]) -> tuple[Any, ...]:
    """What flowed into a node, as a hook behind it is told. Many kernels write into the memory of what nobody else
    holds: what shares it with an output is not there any more, or is only passed on, which looks the same."""
    made = {value.data_ptr() for value in outputs if value is not None and value.is_dense() and value._is_initialized()}
    return tuple([
        Hidden(OVERWRITTEN)
        if value is not None and value.is_dense() and value._is_initialized() and value.data_ptr() in made
        else value
        for value in inputs
    ])  # fmt: skip


class Fed:
    """How many edges lead into a slot of a node. Edges are read natively: those of a node once, when they are of
    interest first."""

    def __init__(self, graph: PaddleGraph) -> None:
        self._graph = graph
        self._from: dict[int, list[int]] = {}  # the nodes with an edge to a node, until these were counted
        self._counts: Counter[tuple[int, int]] = Counter()
        self._counted: set[int] = set()

    def into(self, key: int, slot: int) -> int:
        if not self._from and not self._counted:
            for other, below in enumerate(self._graph.producers()):
                for to in dict.fromkeys(below):
                    self._from.setdefault(to, []).append(other)
        for other in self._from.pop(key, ()):
            if other not in self._counted:
                self._counted.add(other)
                self._counts.update((edge.to, edge.to_slot) for edge in self._graph.edges(other) if edge.to is not None)
        return self._counts[key, slot]


def reached(
    graph: PaddleGraph, fed: Fed, key: int, following: int | None, arriving: Sequence[Any]
) -> tuple[tuple[Any, ...], list[int | None]]:
    """What node ``key`` gave, as far as it flows into node ``following``, whose turn it is, alone into its slot of
    ``arriving``; and by slot of that node, which of them it is."""
    places: list[int | None] = [None] * len(arriving)
    if graph.is_accumulate(key):
        return (), places
    given: list[Any] = []
    for place, edge in enumerate(graph.edges(key)):
        if edge.to is None:
            given.append(None)
        elif edge.to != following or edge.to_slot >= len(arriving):
            given.append(Hidden(LATER))
        elif fed.into(edge.to, edge.to_slot) > 1:
            given.append(Hidden(SUMMED_UP))
        else:
            places[edge.to_slot] = place
            given.append(arriving[edge.to_slot])
    return tuple(given), places


# ---- which nodes to look at


def screened(graph: PaddleGraph) -> tuple[list[int], set[int]]:
    """The nodes whose outgoing gradients are looked at, so that each is once; and those whose incoming ones are too,
    for they may be others by then: where several are summed, at the roots and at the leaves (hooks of the script), and
    on both sides of a node that does not show what it gives."""
    leaving: list[int] = []
    arriving = set(graph.roots())
    fed: Counter[int] = Counter()
    for key, below in enumerate(graph.producers()):
        fed.update(below)
        if not below:
            arriving.add(key)
            continue
        leaving.append(key)
        if graph.ends_unseen(key):
            arriving.add(key)
            arriving.update(below)
    arriving.update(key for key, count in fed.items() if count > 1)
    return leaving, arriving


def edges_into(graph: PaddleGraph, taken: Iterable[int]) -> EdgesInto:
    """See ``Hooks._edges_into``."""
    into: dict[tuple[int, int], list[tuple[int, int]]] = {}
    wanted = {key for key in taken if graph.consumers(key) > 1}
    for key, below in enumerate(graph.producers() if wanted else ()):
        if not wanted.isdisjoint(below):
            for edge in graph.edges(key):
                if edge.to in wanted:
                    into.setdefault((edge.to, edge.to_slot), []).append((key, edge.slot))
    return into
