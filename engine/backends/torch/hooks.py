"""The hooks of one call of torch's engine: how nodes are hooked, and what happens when a hook fires.

Hooks fire on the engine's threads: for CPU nodes the thread that called backward (another one past 60 nested calls). A
hook holds the call and the node's key, never the node: a node held by its own hook is a cycle through C++ that nothing
collects. Every handle is removed when the call ends, for an accumulate node lives as long as its parameter and would
fire once more per iteration.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from adbg.engine.backends.base import HookPlan, HookSink
from adbg.engine.backends.common.hooking import (
    FEEDS,
    HAS,
    HAS_POST,
    HAS_PRE,
    NEEDS_POST,
    NEEDS_PRE,
    SCREEN_IN,
    SCREEN_OUT,
    SUMMED,
    TAKEN,
    TAKEN_POST,
    EdgesInto,
    Hooks,
)
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.hooking import PlacedHook, take_off
from adbg.engine.backends.torch.native import listing, screen
from adbg.engine.backends.torch.native.walk import ACCUMULATE, SHARED_TYPE, CoreWalk
from adbg.engine.backends.torch.tensors import bad
from adbg.engine.backends.torch.touched import SMALL
from adbg.engine.outside import own

if TYPE_CHECKING:
    from adbg.engine.backends.torch.call import TorchCall
    from adbg.engine.backends.torch.entry import EngineEntry

_ONLY_SCREENED = SCREEN_OUT | HAS_POST
# What the flags of a node can be that nobody asked for.
_NOT_TAKEN = bytes(bits for bits in range(256) if not bits & (TAKEN | TAKEN_POST | FEEDS | SUMMED))

_task_id = private.task_id
_vector_norm = torch.linalg.vector_norm
_Tensor = torch.Tensor


class TorchHooks(Hooks):
    """See ``Hooks``. ``task``: torch's id of the running graph task, known once a hook fired or a nested call began."""

    flags: bytearray

    def __init__(self, call: TorchCall, sink: HookSink, entry_point: EngineEntry, task: int | None) -> None:
        super().__init__(call, call, sink)
        self.call: TorchCall = call
        self.graph: TorchCall = call
        self.flags = bytearray()
        self.task = task
        self._entry_point = entry_point
        self._core = call.core
        self._native = False  # the extension looks at every gradient: ``native/screen.py``
        self._lists = False  # nodes are hooked without Python objects of theirs: ``native/listing.py``
        self._nodes: list[Any] = []
        self._handles: list[Any] = []
        # Gradients are recorded in the hooks, or a mode of the script watches operators: compute norms out of their
        # sight.
        self._careful = bool(
            call.create_graph or private.dispatch_depth() or private.function_depth() or private.profiling()
        )

    @property
    def only_screened(self) -> bool:
        """Nodes are hooked, if any are, for the look at their gradients alone. Under 1 us for 600 nodes."""
        return not self.flags.translate(None, _NOT_TAKEN)

    # ---- choosing nodes

    def _prepare(self, plan: HookPlan) -> int:
        if plan.screen:
            self._screen_natively()
        if plan.screen and not self._native:
            self.graph.all_edges()  # kept by the walk, where there was none yet
        far = self.graph.far
        if far is not None and far.size > SMALL and not self._lists:
            self._lists = listing.begin(self._core, self)
        if (plan.screen and not self._native) or (plan.every and not self._lists) or far is None:
            self._nodes = self.graph.walk()
        count = self.graph.size()
        if not self.flags:
            self.flags = bytearray(count)
            self.ran = bytearray(count)
        return len(self._nodes) if plan.every and not self._lists else count

    def _node(self, key: int) -> Any:
        return self._nodes[key] if self._nodes else self.graph.node(key)

    def _taken_by(self, plan: HookPlan, count: int) -> list[int]:
        far = self.graph.far
        if far is None or plan.info is None or not plan.by_place:
            return self._in_reach(super()._taken_by(plan, count))
        chosen = set(super()._taken_by(replace(plan, info=None), count))
        chosen.update(self._at_places(plan, far))
        return self._in_reach(sorted(chosen))

    def _in_reach(self, chosen: list[int]) -> list[int]:
        """Those that may be hooked: of a deep graph only so many nodes may be touched."""
        if len(chosen) <= SMALL or self._lists or self.graph.far is None:
            return chosen
        self._nodes = self.graph.walk()
        return [key for key in chosen if key < len(self._nodes)]

    def _at_places(self, plan: HookPlan, far: CoreWalk) -> list[int]:
        """Keys of the nodes that ``plan.info`` takes, asked once for each type and stack; of accumulate nodes, whose
        module is that of their parameter, one by one."""
        graph, info = self.graph, plan.info
        assert info is not None
        known = graph.services.verdicts_of(plan)
        apart = (SHARED_TYPE, ACCUMULATE) if plan.needs & {"module", "parameter"} else (SHARED_TYPE,)
        alone = bytes(kind.__name__ in apart for kind in far.types)

        def verdict(key: int, kind: int, stack: int) -> bool:
            verdicts = known.setdefault(far.types[kind], {}) if stack and not alone[kind] else {}
            found = verdicts.get(stack)
            if found is None:
                lines = graph.forward_stack(key)[0] if "forward_stack" in plan.needs else ()
                found = verdicts[stack] = info(graph.info(key, plan.needs), lines)
            return found

        if not any(verdict(key, far.kind(key), far.stack(key)) for key in far.places(alone)):
            return []  # the common case, by a few nodes for all
        places = zip(far.kinds_by_key(), far.stacks(), strict=True)
        return [key for key, (kind, stack) in enumerate(places) if verdict(key, kind, stack)]

    def _named_by(self, takes: Callable[[str], bool]) -> Iterable[int]:
        """One question a distinct name; nothing but a set of types (25 ns a node) when the graph has no such name."""
        far = self.graph.far
        if far is not None:
            yield from far.named(takes)
            return
        verdicts: dict[type, bool] = {}
        for kind in set(map(type, self._nodes)):
            if kind.__name__ != SHARED_TYPE:
                verdicts[kind] = takes(kind.__name__)
            else:
                verdicts[kind] = True
        if not any(verdicts.values()):
            return
        for key, node in enumerate(self._nodes):
            kind = type(node)
            if verdicts[kind] and (kind.__name__ != SHARED_TYPE or takes(self.graph.name(key))):
                yield key

    def _want_screen(self) -> None:
        """Every gradient is looked at once, as the output of the node that made it; as the input too where it may be
        another by then: where several are summed, at the roots, at the leaves (tensor hooks, gradients changed in
        place), at the nodes of ``autograd.Function``s and at those that they give to."""
        if self._native:
            self.hooked = max(self.hooked, self.graph.size())
            return
        graph, all_edges = self.graph, self.graph.all_edges()
        nodes, flags, keep, screen = self._nodes, self.flags, self._handles.append, self._screen
        quick = not self._careful and not self.hooked
        slots: dict[Any, int] = {}  # slots of a node that an edge leads to, as bits
        incoming = set(graph.root_nodes)
        seen_slots = slots.get
        for key, edges in enumerate(all_edges):
            if not edges:
                incoming.add(nodes[key])
            else:
                if quick:
                    keep(nodes[key].register_hook(PlacedHook(screen, key)))
                    flags[key] = _ONLY_SCREENED
                else:
                    self.want(key, SCREEN_OUT)
            for node, slot in edges:
                bits = seen_slots(node, 0)
                if bits >> slot & 1:
                    incoming.add(node)
                slots[node] = bits | 1 << slot
        if quick:
            self.hooked = len(self._handles)
        custom = {kind for kind in set(map(type, nodes)) if is_custom(kind)}  # 25 ns a node
        for key, node in enumerate(nodes if custom else ()):
            if type(node) in custom:
                incoming.add(node)
                incoming.update(below for below, _ in all_edges[key])
        for node in incoming:
            key = graph.index.get(node, -1)
            if key >= 0:
                self.want(key, SCREEN_IN)

    def _screen_natively(self) -> None:
        far = self.graph.far
        if far is not None:
            self._native = screen.begin(self._core, far, self, self.call.root_outputs)

    def _edges_into(self, taken: Iterable[int]) -> EdgesInto:
        far = self.graph.far
        if far is not None:
            return far.into(taken)
        wanted, index = set(taken), self.graph.index
        into: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for key, edges in enumerate(self.graph.all_edges()):
            for slot, (below, to_slot) in enumerate(edges):
                producer = index.get(below, -1)
                if producer in wanted:
                    into.setdefault((producer, to_slot), []).append((key, slot))
        return into

    def _take_all(self, post: bool) -> bool:
        """The common case, without a question for each node."""
        if self.hooked:
            return False
        keep, before, after, far = self._handles.append, self.before, self.after, self.graph.far
        if self._lists and far is not None:
            far.hook_all(post)
            self.hooked = far.size
        else:
            for key, node in enumerate(self._nodes):
                keep(node.register_prehook(PlacedHook(before, key)))
                if post:
                    keep(node.register_hook(PlacedHook(after, key)))
            self.hooked = len(self._nodes)
        bits = TAKEN | HAS_PRE | ((TAKEN_POST | HAS_POST) if post else 0)
        self.flags = bytearray([bits]) * self.hooked + bytearray(len(self.flags) - self.hooked)
        return True

    def want(self, key: int, bits: int) -> None:
        current = key == self.running
        if self.ran[key] and not current:
            return
        old = self.flags[key]
        new = old | bits
        if new == old:
            return
        far = self.graph.far if self._lists else None
        if far is not None:
            before = bool(new & NEEDS_PRE and not old & HAS_PRE and not current)
            after = bool(new & NEEDS_POST and not old & HAS_POST)
            far.hook(key, before, after)
            new |= (HAS_PRE if before else 0) | (HAS_POST if after else 0)
            new |= SCREEN_OUT if after and self._native else 0
        if new & NEEDS_PRE and not new & HAS_PRE and not current:
            self._handles.append(self._node(key).register_prehook(PlacedHook(self.before, key)))
            new |= HAS_PRE
        if new & NEEDS_POST and not new & HAS_POST:
            hook = PlacedHook(self._screen if bits == SCREEN_OUT and not self._careful else self.after, key)
            self._handles.append(self._node(key).register_hook(hook))
            new |= HAS_POST | (SCREEN_OUT if self._native else 0)
        if not old & HAS:
            self.hooked += 1
        self.flags[key] = new

    def unhook(self) -> None:
        if self._native:
            screen.end(self._core, self.graph.far, self)
            self._native = False
        if self._lists:
            listing.end(self._core, self.graph.far, self)
            self._lists = False
        take_off(self._handles)  # again from the start, where it is interrupted
        self._handles = []
        self.flags = bytearray(len(self.flags))
        self.hooked = 0
        self.parts.clear()

    # ---- the hooks

    def before(self, key: int, grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if _task_id() != self.task and not self.is_mine(key):
            return None
        self.running = key
        self.ran[key] = 1
        bits = self.flags[key]
        if bits & TAKEN or (bits & SCREEN_IN and self._any_bad(grad_outputs)):
            return self.sink.node_begin(self.call, key, grad_outputs)
        return None

    def after(self, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if _task_id() != self.task and not self.is_mine(key):
            return None
        self.running = None
        self.ran[key] = 1
        bits = self.flags[key]
        replaced = None
        if bits & TAKEN_POST or (bits & SCREEN_OUT and self._any_bad(grad_inputs)):
            replaced = self.sink.node_end(self.call, key, grad_inputs, grad_outputs)
            if not grad_inputs:
                replaced = None  # an accumulate node gives nothing on; torch refuses any answer
        if bits & (FEEDS | SUMMED):
            self.parts.kept.pop(key, None)
            self.parts.keep(key, grad_inputs if replaced is None else replaced)
        return replaced

    def _screen(self, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """``after`` for a node that is only screened, as short as it can be: 0.3 us and a norm of 1.2 us a gradient.

        A tensor that is passed on twice is looked at once. One that the node was given itself (an addition) is looked
        at again: a tensor hook, or a change in place, came between (tiny LSTM: no difference, 2.02 of plain).
        """
        if _task_id() != self.task and not self.is_mine(key):
            return None
        if self.flags[key] != _ONLY_SCREENED:
            return self.after(key, grad_inputs, grad_outputs)
        self.ran[key] = 1
        looked = None
        try:
            for value in grad_inputs:
                if value is not None and value is not looked:
                    looked = value
                    if type(value) is not _Tensor:  # its class may see what is done to it
                        return self.after(key, grad_inputs, grad_outputs)
                    figure = _vector_norm(value).item()
                    if figure - figure != 0 and bad(value):
                        return self.after(key, grad_inputs, grad_outputs)
        except own(Exception):  # no norm for this kind of tensor: the long way
            return self.after(key, grad_inputs, grad_outputs)
        return None

    def key_of(self, node: Any) -> int | None:
        return self.graph.key_of(node)

    def running_key(self) -> int | None:
        """The key of the node that runs on this thread, where it is one of this call's."""
        far = self.graph.far
        return far.running() if far is not None else None

    def bad_before(self, key: int, grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """A gradient that the extension did not find finite came to a node; a hook in Python is told of it anyway."""
        self.running = key
        self.ran[key] = 1
        if self.flags[key] & HAS_PRE or not self._any_bad(grad_outputs):
            return None
        return self.sink.node_begin(self.call, key, grad_outputs)

    def bad_after(
        self, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """The same of one that left it."""
        self.running = None
        self.ran[key] = 1
        if self.flags[key] & HAS_POST or not self._any_bad(grad_inputs):
            return None
        return self.sink.node_end(self.call, key, grad_inputs, grad_outputs)

    def is_mine(self, key: int) -> bool:
        """Does the running graph task belong to this call? A nested call (or an expression of the user's) may run over
        the same nodes, and an accumulate node is shared by all threads that train the same parameter."""
        task = _task_id()
        if self.task is None:
            if self._entry_point.passing() or self._entry_point.tasks.get(task, self.call) is not self.call:
                return False
            if threading.get_ident() != self.call.thread and self._is_foreign(key):
                return False
            self.call.learn_task(task)
        return task == self.task

    def _is_foreign(self, key: int) -> bool:
        """Asked on a thread that did not begin this call, while its task is not known: may the task be another's?

        A thread of torch (past 60 nested calls, of a device) has nothing of Python below a hook; a thread of the
        script that runs a backward of its own has.
        """
        node, thread = self.graph.held(key), self.call.thread
        below = sys._getframe(2).f_back  # 0 is this function, 1 _is_mine, 2 the hook
        if below is not None or node is None:  # no nodes: the call ended while the other's hooks ran
            return True
        others = [call for call in list(self._entry_point.open) if call.thread != thread and call.task is None]
        # Not by key_of: it would walk a graph that its own thread may be walking now.
        return any(call.holds(node) for call in others)

    def _any_bad(self, gradients: tuple[Any, ...]) -> bool:
        if self._careful:
            with private.undisturbed():
                return any(value is not None and bad(value) for value in gradients)
        return any(value is not None and bad(value) for value in gradients)


def is_custom(kind: type) -> bool:
    """Is it the type of the nodes of an ``autograd.Function``, whose backward is Python?"""
    return private.function_base is not None and issubclass(kind, private.function_base)
