"""What the nodes of a graph keep in memory until they have run. Runs on the parked thread; nothing is unpacked.

A memory is counted once, however many nodes saved it and through how many views, at the node that lets go of it: the
last of them to run.
"""

from __future__ import annotations

from collections.abc import Mapping

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Retained, RetainedRow, SavedContexts
from adbg.engine.types import ValueState

_FREED = (ValueState.FREED, ValueState.FREED_NOW)
_NAMES = 4  # saved tensors named per node


class _Held:
    """One memory, as it was found."""

    __slots__ = ("bytes", "key", "leaf", "names")

    def __init__(self, nbytes: int) -> None:
        self.bytes = nbytes
        self.key = 0
        self.leaf = False
        self.names: list[str] = []


class Savers:
    """All that a walk over the saved values of a graph finds. Holds no tensor."""

    def __init__(self, backend: Backend, graph: Graph) -> None:
        self.memories: dict[int, _Held] = {}
        self.savers: dict[int, list[tuple[int, str]]] = {}  # by memory, the nodes that saved it and under which name
        self.freed = self.unread = self.hidden = 0
        self.why_hidden = ""
        for key in graph.order():
            self._node(backend, graph, key)

    def _node(self, backend: Backend, graph: Graph, key: int) -> None:
        leaf = graph.is_accumulate(key)
        why = graph.saved_hidden(key)
        if why and not leaf:
            self.hidden += 1
            self.why_hidden = why
        freed = unread = False
        for saved in graph.saved(key):
            freed |= saved.state in _FREED
            unread |= saved.state is ValueState.UNREAD
            if saved.value is None or not backend.is_tensor(saved.value):
                continue
            try:
                storages = backend.storages(saved.value)
            except own(Exception):  # a tensor subclass of the program's that refuses
                unread = True
                continue
            for address, nbytes in storages:
                held = self.memories.setdefault(address, _Held(nbytes))
                if leaf:
                    held.leaf = True
                    continue
                if held.key != key:
                    held.key, held.names = key, []
                held.names.append(saved.name)
                self.savers.setdefault(address, []).append((key, saved.name))
        self.freed += freed
        self.unread += unread


def _contexts(backend: Backend) -> list[SavedContexts]:
    found: dict[str, tuple[int, dict[int, int]]] = {}
    for name, values in backend.custom_contexts():
        count, memories = found.get(name, (0, {}))
        for value in values:
            if backend.is_tensor(value):
                memories.update(backend.storages(value))
        found[name] = count + 1, memories
    sized = [SavedContexts(name, count, sum(memories.values())) for name, (count, memories) in found.items()]
    return sorted(sized, key=lambda each: -each.bytes)


def retained(backend: Backend, graph: Graph, most: int) -> Retained:
    """What is kept now; nodes that ran have let go of it."""
    order = graph.order()
    position = {key: index for index, key in enumerate(order, 1)}
    found = Savers(backend, graph)
    saved = {address: held for address, held in found.memories.items() if held.names}
    by_node: dict[int, list[_Held]] = {}
    for held in saved.values():
        by_node.setdefault(held.key, []).append(held)
    sizes = {key: sum(held.bytes for held in each) for key, each in by_node.items()}
    free = {key: sum(held.bytes for held in each if not held.leaf) for key, each in by_node.items()}
    largest = sorted(by_node, key=lambda key: (-free[key], -sizes[key], position[key]))[:most]
    if len(largest) > 1:
        graph.read_all_stacks()
    return Retained(
        nodes=len(order),
        bytes=sum(held.bytes for held in saved.values() if not held.leaf),
        held=sum(held.bytes for held in saved.values() if held.leaf),
        rows=[_row(graph, key, position, by_node[key]) for key in largest],
        freed=found.freed,
        unread=found.unread,
        hidden=found.hidden,
        why_hidden=found.why_hidden,
        contexts=_contexts(backend) if found.hidden else [],
        note=graph.note,
    )


def _row(graph: Graph, key: int, position: Mapping[int, int], memories: list[_Held]) -> RetainedRow:
    info = graph.describe(key)
    memories = sorted(memories, key=lambda held: (held.leaf, -held.bytes))
    names = list(dict.fromkeys(name for held in memories for name in held.names))
    return RetainedRow(
        index=position[key],
        name=info.unique_name,
        bytes=sum(held.bytes for held in memories if not held.leaf),
        held=sum(held.bytes for held in memories if held.leaf),
        tensors=[*names[:_NAMES], *(["…"] if len(names) > _NAMES else [])],
        module=info.module,
        parameter=info.parameter,
        forward=info.forward,
    )
