"""Which nodes of a running call are hooked, and for what: the part that is the same for every framework.

Runs on the thread that calls backward, or on one parked inside it. A backend derives from ``Hooks``: it says how a node
is hooked and what happens when a hook fires.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from adbg.engine.backends.base import HookPlan, HookSink, Part
from adbg.engine.backends.common.graph import WalkedGraph

# What a node is hooked for, as bits.
TAKEN = 1  # by name, info, index or every: report node_begin
TAKEN_POST = 2  # and node_end
SCREEN_OUT = 4  # look at the outgoing gradients
SCREEN_IN = 8  # look at the incoming ones
FEEDS = 16  # keep the parts it gives to a summed gradient
SUMMED = 32  # drop the parts it was given, once it ran
HAS_PRE = 64
HAS_POST = 128
HAS = HAS_PRE | HAS_POST
NEEDS_PRE = TAKEN | SCREEN_IN
NEEDS_POST = TAKEN_POST | SCREEN_OUT | FEEDS | SUMMED

#: By (producer, its slot): the (consumer, its slot) of every edge that leads there.
EdgesInto = Mapping[tuple[int, int], Sequence[tuple[int, int]]]


class Parts:
    """Parts of summed gradients, kept from the end of a consumer until the node that is given the sum has run."""

    def __init__(self) -> None:
        self.feeds: dict[int, list[tuple[int, int, int]]] = {}  # consumer -> (its slot, producer, slot there)
        self.kept: dict[int, list[Part]] = {}

    def want(self, into: EdgesInto) -> tuple[set[int], set[int]]:
        """Keep those of ``into`` that are sums. Returns the nodes that are given them, and the nodes that feed them."""
        summed: set[int] = set()
        feeding: set[int] = set()
        for (producer, to_slot), consumers in into.items():
            if len(consumers) < 2:
                continue
            summed.add(producer)
            for key, slot in consumers:
                feeds = self.feeds.setdefault(key, [])
                if (slot, producer, to_slot) not in feeds:
                    feeds.append((slot, producer, to_slot))
                    feeding.add(key)
        return summed, feeding

    def keep(self, key: int, values: Sequence[Any], copied: Callable[[Any], Any] | None = None) -> None:
        """``key`` ran, and gave ``values``; ``copied`` where the framework adds to their memory."""
        for slot, producer, to_slot in self.feeds.get(key, ()):
            if slot < len(values):
                value = values[slot] if copied is None else copied(values[slot])
                self.kept.setdefault(producer, []).append(Part(to_slot, key, value))

    def of(self, key: int, edges: int, is_root: bool) -> tuple[Sequence[Part], str]:
        """See ``BackwardCall.contributions``. ``edges`` lead to the node."""
        parts = self.kept.get(key, ())
        if edges + is_root < 2:
            return (), "one consumer only: the gradient is not a sum"
        if not parts:
            return (), "not kept: set a breakpoint on this node before its consumers run"
        why = []
        if missing := edges - len(parts):
            why.append(f"{missing} of {edges} were not kept (they ran before, gave nothing, or feed another slot)")
        if is_root:
            why.append("the gradient given to backward is part of the sum")
        return list(parts), "; ".join(why)

    def clear(self) -> None:
        self.feeds.clear()
        self.kept.clear()


class Hooks(abc.ABC):
    """The hooks of one call. ``flags``: by key, what a node is hooked for; empty until a plan comes."""

    flags: Any

    def __init__(self, call: Any, graph: WalkedGraph, sink: HookSink) -> None:
        """Args: call: the ``BackwardCall``, for the sink. graph: the same object, as a graph."""
        self.call = call
        self.graph = graph
        self.sink = sink
        self.flags = ()
        self.ran = bytearray()
        self.running: int | None = None  # the node that runs
        self.hooked = 0  # how many nodes are
        self.parts = Parts()

    # ---- a backend's own

    @abc.abstractmethod
    def want(self, key: int, bits: int) -> None:
        """Hook ``key`` for ``bits``. A node that ran is left alone; the current one can still get a post hook."""

    @abc.abstractmethod
    def unhook(self) -> None:
        """Take all hooks off."""

    @abc.abstractmethod
    def _prepare(self, plan: HookPlan) -> int:
        """Make ``flags`` and ``ran``; returns how many nodes there are."""

    @abc.abstractmethod
    def _want_screen(self) -> None:
        """Have every gradient looked at: see ``HookPlan.screen``."""

    @abc.abstractmethod
    def _edges_into(self, taken: Iterable[int]) -> EdgesInto:
        """The edges that lead to nodes of ``taken``; those to nodes with a single consumer may be left out."""

    def _names(self) -> Iterable[str]:
        """The framework's name of every node, by key."""
        return map(self.graph.name, range(len(self.graph.walk())))

    def _takes_nothing(self, plan: HookPlan) -> bool:
        """Whether that is known without looking at the nodes."""
        return False

    def _take_all(self, post: bool) -> bool:
        """Hook every node at once, where none is hooked yet; False: node by node, please."""
        return False

    def _rest(self) -> None:  # noqa: B027
        """All wanted nodes are hooked."""

    # ---- plans

    def hook(self, plan: HookPlan) -> int:
        """See ``BackwardCall.hook``."""
        if plan.empty or self._takes_nothing(plan):
            return self.hooked
        count = self._prepare(plan)
        taken: Iterable[int] = range(count) if plan.every else self._taken_by(plan, count)
        if not (plan.every and self._take_all(plan.post)):
            bits = TAKEN | TAKEN_POST if plan.post else TAKEN
            for key in taken:
                self.want(key, bits)
        if plan.screen:
            self._want_screen()
        if plan.contributions:
            self._want_parts(taken)
        self._rest()
        return self.hooked

    def _taken_by(self, plan: HookPlan, count: int) -> list[int]:
        chosen: set[int] = set()
        if plan.name is not None:
            chosen.update(self._named_by(plan.name))
        if plan.indices:
            order = self.graph.order()
            chosen.update(order[index - 1] for index in plan.indices if 0 < index <= len(order))
        if plan.info is not None:
            graph, with_stack = self.graph, "forward_stack" in plan.needs
            if with_stack:
                graph.read_all_stacks()
            for key in range(count):
                if key not in chosen:
                    stack = graph.forward_stack(key)[0] if with_stack else ()
                    if plan.info(graph.info(key, plan.needs), stack):
                        chosen.add(key)
        return sorted(chosen)

    def _named_by(self, takes: Callable[[str], bool]) -> Iterable[int]:
        """One question for each distinct name."""
        verdicts: dict[str, bool] = {}
        for key, name in enumerate(self._names()):
            verdict = verdicts.get(name)
            if verdict is None:
                verdict = verdicts[name] = takes(name)
            if verdict:
                yield key

    def _want_parts(self, taken: Iterable[int]) -> None:
        if not taken:  # the common case of a breakpoint that matches nothing
            return
        summed, feeding = self.parts.want(self._edges_into(taken))
        for key in summed:
            self.want(key, SUMMED)
        for key in feeding:
            self.want(key, FEEDS)
