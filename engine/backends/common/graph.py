"""A walked graph whose keys are positions in a walk from the roots: what is the same for every framework.

Runs on the thread that made the graph, later on the parked thread. The nodes are held while the object is in use, and
let go of roots first: the other way round each one would free the chain below it recursively.
"""

from __future__ import annotations

import abc
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Graph
from adbg.engine.types import NodeInfo

ALL_FACTS = ("unique_name", "module", "parameter", "forward_stack")  # those of ``HookPlan.needs``


def roots_first(nodes: list[Any], _: object = None) -> None:
    """Let go of nodes in their order: Python frees a list from its end. C alone runs, so no interrupt leaves half."""
    nodes.reverse()
    nodes.clear()


class WalkedGraph(Graph):
    """The graph below some roots. Everything is made on first use."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._index: dict[Any, int] = {}
        self._producers: list[tuple[int, ...]] | None = None
        self._consumers: Counter[int] | None = None
        self._order: list[int] | None = None
        self.wanted = ()
        self.note = ""

    # ---- a backend's own

    @abc.abstractmethod
    def walk(self) -> list[Any]:
        """The nodes by key."""

    @property
    @abc.abstractmethod
    def root_nodes(self) -> Sequence[Any]:
        """One for each tensor that backward began at: a node may be there twice."""

    @abc.abstractmethod
    def info(self, key: int, needs: Sequence[str] | frozenset[str]) -> NodeInfo:
        """A NodeInfo with at least the fields in ``needs`` (those of ``HookPlan.needs``); the cheap ones are always
        there."""

    @abc.abstractmethod
    def producers(self) -> list[tuple[int, ...]]:
        """By key, the keys of the nodes below: one entry for each valid edge, in order of the edges."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of the nodes."""

    # ---- the same for all

    @property
    def index(self) -> dict[Any, int]:
        """Node -> key, made when first asked for."""
        if not self._index:
            nodes = self.walk()
            self._index = dict(zip(nodes, range(len(nodes)), strict=True))
        return self._index

    def consumers(self, key: int) -> int:
        """How many edges lead to the node."""
        if self._consumers is None:
            self._consumers = Counter(itertools.chain.from_iterable(self.producers()))
        return self._consumers[key]

    def roots(self) -> Sequence[int]:
        return list(dict.fromkeys(self.index[node] for node in self.root_nodes))

    def describe(self, key: int) -> NodeInfo:
        return self.info(key, ALL_FACTS)

    def names(self) -> Sequence[str]:
        return sorted({self.name(key) for key in range(len(self.walk()))})

    def _drop_nodes(self) -> None:
        self._index = {}
        self.wanted = ()
        roots_first(self._nodes)
