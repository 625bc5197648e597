"""A graph walked by the extension, as ``TorchGraph`` asks for it. Keys are those of its own walk: the same order.

Runs on the thread that walks. No Python object is made for a node that nobody asks for: those that were made are what
makes a deep graph crash as it is freed (``touched.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from adbg.engine.types import Edge

ACCUMULATE = "AccumulateGrad"
SHARED_TYPE = "CppFunction"  # the Python type of nodes whose C++ type torch does not know (C++ extensions)


class CoreWalk:
    """See above. ``types``: the Python types of the nodes, by kind (a number)."""

    def __init__(self, walk: Any) -> None:
        self._walk = self.raw = walk
        self.types: Sequence[type] = walk.types()
        self._names = [kind.__name__ for kind in self.types]
        self.size = len(walk)
        self.kind: Callable[[int], int] = walk.kind
        self.node: Callable[[int], Any] = walk.node
        self.address: Callable[[int], int] = walk.address
        self.stack: Callable[[int], int] = walk.stack
        self.stacks: Callable[[], list[int]] = walk.stacks
        self.kinds_by_key: Callable[[], list[int]] = walk.kinds
        self.places: Callable[[bytes], list[int]] = walk.places
        self.order: Callable[[], list[int]] = walk.order
        self.producers: Callable[[], list[tuple[int, ...]]] = walk.producers
        self.screen: Callable[[bytes], bool] = walk.screen
        self.unscreen: Callable[[], None] = walk.unscreen
        self.hook: Callable[[int, bool, bool], bool] = walk.hook
        self.hook_all: Callable[[bool], bool] = walk.hook_all
        self.unhook: Callable[[], None] = walk.unhook
        self.running: Callable[[], int | None] = walk.running
        self.reclaim: Callable[[], int | None] = walk.reclaim
        self.roots: Callable[[], list[int]] = walk.roots

    def release(self) -> None:
        self._walk.release()

    def kinds(self) -> frozenset[str] | None:
        """See ``TorchGraph.kinds``."""
        custom = torch.autograd.function.BackwardCFunction
        if any(kind.__name__ == SHARED_TYPE or issubclass(kind, custom) for kind in self.types):
            return None
        return frozenset(self._names)

    def names(self) -> set[str] | None:
        """Of all nodes; None where they must be asked of the nodes one by one."""
        return None if SHARED_TYPE in self._names else set(self._names)

    def groups(self) -> list[int]:
        """See ``Graph.groups``: kind and stack say all of a node but who owns the parameter of an accumulate node."""
        told = [0 if name in (SHARED_TYPE, ACCUMULATE) else place + 1 << 32 for place, name in enumerate(self._names)]
        return [told[kind] and told[kind] | stack for kind, stack in zip(self._walk.kinds(), self._walk.stacks())]

    def type_of(self, key: int) -> type:
        kind: int = self._walk.kind(key)
        return self.types[kind]

    def name(self, key: int) -> str:
        name = self._names[self._walk.kind(key)]
        return str(self.node(key).name()).removeprefix("torch::autograd::") if name == SHARED_TYPE else name

    def number(self, key: int) -> int | None:
        number: int = self._walk.number(key)
        return None if number >= 1 << 63 else number

    def key_of(self, node: Any) -> int | None:
        key: int | None = self._walk.key(node)
        return key

    def edges(self, key: int) -> list[Edge]:
        return [Edge(slot, below, to_slot) for slot, (below, to_slot) in enumerate(self._walk.edges(key))]

    def ordinals(self, order: Sequence[int]) -> list[int] | None:
        """By key, from 1; None where names must be asked of the nodes one by one."""
        if SHARED_TYPE in self._names:
            return None
        groups = {name: place for place, name in enumerate(dict.fromkeys(self._names))}
        found: list[int] = self._walk.ordinals([groups[name] for name in self._names], list(order))
        return found

    def named(self, takes: Callable[[str], bool]) -> Iterable[int]:
        """Keys of the nodes whose name is taken: one question a distinct name."""
        verdicts = {name: name == SHARED_TYPE or takes(name) for name in set(self._names)}
        if not any(verdicts.values()):
            return ()
        keys: list[int] = self._walk.keys(bytes(verdicts[name] for name in self._names))
        if SHARED_TYPE in verdicts:
            keys = [key for key in keys if self._names[self.kind(key)] != SHARED_TYPE or takes(self.name(key))]
        return keys

    def into(self, taken: Iterable[int]) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """See ``EdgesInto``."""
        marks = bytearray(self.size)
        for key in taken:
            marks[key] = 1
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for producer, to_slot, key, slot in self._walk.into(bytes(marks)):
            found.setdefault((producer, to_slot), []).append((key, slot))
        return found
