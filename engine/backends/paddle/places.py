"""Which nodes of a Paddle call are hooked, for what, and where the hooks are. Runs on the thread that called backward,
or on one parked inside it.

A hook in front of a node is a tensor's own (``native.symbols``); behind an operator it is Paddle's post hook, behind a
PyLayer the function that stands around its backward, behind an accumulate node the turn of the next one.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from adbg.engine.backends.base import HookPlan, Part
from adbg.engine.backends.paddle.graph import PYLAYER, PaddleGraph, Services
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.stacks import framework_name

# What a node is hooked for, as bits.
TAKEN = 1  # by name, info, index or every: report node_begin
TAKEN_POST = 2  # and node_end
SCREEN_OUT = 4  # look at the outgoing gradients
SCREEN_IN = 8  # look at the incoming ones
FEEDS = 16  # keep the parts it gives to a summed gradient
SUMMED = 32  # drop the parts it was given, once it ran
TRACK = 64  # know that it runs: a PyLayer, whose backward may start a call
TICK = 128  # the node behind an accumulate node: its turn says that the other is done
WARN = 256  # Paddle would crash on an undefined gradient here
HAS_PRE = 512
HAS_POST = 1024
NEEDS_PRE = TAKEN | SCREEN_IN | TRACK | TICK | WARN
NEEDS_POST = TAKEN_POST | SCREEN_OUT | FEEDS | SUMMED
HAS = HAS_PRE | HAS_POST
REPORTS = TAKEN | TAKEN_POST | SCREEN_IN | SCREEN_OUT | FEEDS | SUMMED
MOST_PASSED = 1000  # sets of kinds that are remembered as of no interest to a plan


class HookPlaces(PaddleGraph):
    """The graph of a call, with its hooks; what they do is the subclass's."""

    def __init__(self, roots: Sequence[Any], services: Services, inputs: Sequence[Any]) -> None:
        """Args: inputs: those of ``paddle.grad``; empty for a whole backward."""
        super().__init__(roots, services)
        self._wanted = tuple(inputs)
        self._flags: list[int] = []
        self._ran = bytearray()
        self._running: int | None = None
        self._handles: list[tuple[Any, Any]] = []  # (node, number of its pre-hook) or (None, handle)
        self.placed: list[Any] = []  # post hooks: see ``EngineEntry.keep``
        self._hooked = 0
        self._executing: frozenset[int] | None = None
        self._turns: dict[int, list[int]] = {}  # without pre-hooks: nodes whose turn comes when a node ended
        self._feeds: dict[int, list[tuple[int, int, int]]] = {}
        self._parts: dict[int, list[Part]] = {}

    @abc.abstractmethod
    def _before_one(self, key: int, gradient: Any) -> Any:
        """The one incoming gradient of a node is complete."""

    @abc.abstractmethod
    def _gather(self, key: int, place: int, last: int, gradient: Any) -> Any:
        """Incoming gradient ``place`` of 0 to ``last`` is complete."""

    @abc.abstractmethod
    def _hand_over(self, place: int, gradient: Any) -> Any:
        """A second hook at every slot but the last: edits of all slots are known now."""

    @abc.abstractmethod
    def _after(self, key: int, outputs: Any, inputs: Any) -> Any:
        """An operator ran."""

    # ---- choosing nodes

    def hook(self, plan: HookPlan) -> int:
        if plan.empty:
            return self._hooked
        if self._takes_nothing(plan):
            return self._hooked
        nodes = self.walk()
        self._prepare()
        bits = TAKEN | TAKEN_POST if plan.post else TAKEN
        taken: Iterable[int] = range(len(nodes)) if plan.every else self._taken_by(plan)
        for key in taken:
            self._want(key, bits)
        if plan.screen:
            self._want_screen()
        if plan.contributions:
            self._want_parts(taken)
        self._rest()
        return self._hooked

    def _takes_nothing(self, plan: HookPlan) -> bool:
        """The usual case of a plan by name: nothing in this graph has one, and no PyLayer is there to be followed."""
        if self._flags or plan.name is None or plan.every or plan.indices or plan.info is not None or plan.screen:
            return False
        kinds = self.kinds()
        known, passed = self._services.passed
        if known is not plan.name:
            known, passed = self._services.passed = (plan.name, set())
        if kinds in passed:
            return True
        if any(kind.startswith(PYLAYER) or plan.name(kind) for kind in kinds):
            return False
        if len(passed) < MOST_PASSED:
            passed.add(kinds)
        return True

    def _prepare(self) -> None:
        if self._flags:
            return
        nodes = self.walk()
        self._flags = [0] * len(nodes)
        self._ran = bytearray(len(nodes))
        for key, printed in enumerate(self.printed()):
            if printed.startswith(PYLAYER):
                self._want(key, TRACK)

    @staticmethod
    def _rest() -> None:
        native = symbols.native()
        if native is not None:
            native.rest()

    def _taken_by(self, plan: HookPlan) -> list[int]:
        chosen: set[int] = set()
        if plan.name is not None:
            verdicts: dict[str, bool] = {}
            for key, printed in enumerate(self.printed()):
                name = framework_name(printed)
                verdict = verdicts.get(name)
                if verdict is None:
                    verdict = verdicts[name] = plan.name(name)
                if verdict:
                    chosen.add(key)
        if plan.indices:
            order = self.order()
            chosen.update(order[index - 1] for index in plan.indices if 0 < index <= len(order))
        if plan.info is not None:
            with_stack = "forward_stack" in plan.needs
            for key in range(len(self._nodes)):
                if key not in chosen:
                    stack = self.forward_stack(key)[0] if with_stack else ()
                    if plan.info(self.info(key, plan.needs), stack):
                        chosen.add(key)
        return sorted(chosen)

    def _want_screen(self) -> None:
        """Every gradient is looked at once: as the output of the node that made it; where several are summed, and at
        the roots, as the input."""
        fed: dict[int, int] = {}
        for key, below in enumerate(self.producers()):
            if below:
                self._want(key, SCREEN_OUT)
            for producer in below:
                fed[producer] = fed.get(producer, 0) + 1
        for key in {*self.roots(), *(key for key, count in fed.items() if count > 1)}:
            self._want(key, SCREEN_IN)

    def _want_parts(self, taken: Iterable[int]) -> None:
        if symbols.native() is None:
            return
        wanted = {key for key in taken if sum(below.count(key) for below in self.producers()) > 1}
        if not wanted:
            return
        into: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for key, below in enumerate(self.producers()):
            if wanted.isdisjoint(below):
                continue
            for edge in self.edges(key):
                if edge.to in wanted:
                    into.setdefault((edge.to, edge.to_slot), []).append((key, edge.slot))
        for (producer, to_slot), consumers in into.items():
            if len(consumers) < 2:
                continue
            self._want(producer, SUMMED)
            for key, slot in consumers:
                feeds = self._feeds.setdefault(key, [])
                if (slot, producer, to_slot) not in feeds:
                    feeds.append((slot, producer, to_slot))
                    self._want(key, FEEDS)

    def _want(self, key: int, bits: int) -> None:
        """Hook ``key`` for ``bits``. A node that ran is left alone; the one at hand can still get a post hook."""
        at_hand = key == self._running
        if (self._ran[key] and not at_hand) or (self._wanted and key not in self._needed()):
            return  # it ran; or paddle.grad takes the gradient in front of it, and its copy has no slots of its own
        old = self._flags[key]
        new = old | bits
        if new == old:
            return
        self._flags[key] = new
        if not old & REPORTS and new & REPORTS:
            self._hooked += 1
        if new & NEEDS_PRE and not old & HAS_PRE and not at_hand:
            self._place_pre(key)
        if new & NEEDS_POST and not old & HAS_POST:
            self._flags[key] |= HAS_POST
            self._place_post(key)

    def _place_pre(self, key: int) -> None:
        self._flags[key] |= HAS_PRE
        native = symbols.native()
        if native is None:
            self._place_turn(key)
            return
        node = self._nodes[key]
        slots = native.input_slots(node.node_ptr())
        places = [(slot, rank) for slot, ranks in enumerate(slots) for rank in range(ranks)]
        if len(places) == 1:
            self._handles.append((node, native.place(node, *places[0], functools.partial(self._before_one, key))))
            return
        last = len(places) - 1
        for place, (slot, rank) in enumerate(places):
            hook = functools.partial(self._gather, key, place, last)
            self._handles.append((node, native.place(node, slot, rank, hook)))
        for place, (slot, rank) in enumerate(places[:-1]):  # an edit of an earlier slot can be handed over only now
            self._handles.append((node, native.place(node, slot, rank, functools.partial(self._hand_over, place))))

    def _place_turn(self, key: int) -> None:
        """Without hooks in front of nodes: the predicted node before this one says when its turn comes."""
        if self.is_custom(key):
            return  # the PyLayer's own backward is stood around
        order = list(self.order())
        if key not in order:
            return
        earlier = order[: order.index(key)]
        while earlier and self.is_accumulate(earlier[-1]):
            earlier.pop()
        before = earlier[-1] if earlier else -1
        self._turns.setdefault(before, []).append(key)
        if before >= 0:
            self._want_end(before)

    def _want_end(self, key: int) -> None:
        if not self._flags[key] & HAS_POST:
            self._flags[key] |= HAS_POST
            self._place_post(key)

    def _place_post(self, key: int) -> None:
        if self.is_accumulate(key) or self.ends_unseen(key):
            self._want(key, TRACK)
            order = list(self.order())
            place = order.index(key) + 1 if key in order else len(order)
            if place < len(order) and symbols.native() is not None:
                self._want(order[place], TICK)
        elif self.is_custom(key):
            self._want(key, TRACK)  # its end is told by the function around PyLayer.backward
        else:
            hook = functools.partial(self._after, key)
            self.placed.append(hook)
            self._handles.append((None, self._nodes[key]._register_post_hook(hook)))

    def unhook(self) -> None:
        if not self._flags:
            return
        handles, self._handles = self._handles, []
        native = symbols.native()
        for node, handle in handles:
            if node is None:
                handle.remove()
            elif native is not None:
                native.remove(node, handle)
        self._rest()
        self._flags = [0] * len(self._flags)
        self._turns.clear()
        self._feeds.clear()
        self._parts.clear()
        self._hooked = 0

    def _needed(self) -> frozenset[int]:
        if self._executing is None:
            self._executing = frozenset(self.order())
        return self._executing
