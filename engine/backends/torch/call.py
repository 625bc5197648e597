"""One running backward call: which nodes are hooked, and what happens when a hook fires.

Hooks fire on the engine's threads: for CPU nodes the thread that called backward (another one past 60 nested calls). A
hook holds the call and the node's key, never the node: a node held by its own hook is a cycle through C++ that nothing
collects. Every handle is removed when the call ends, for an accumulate node lives as long as its parameter and would
fire once more per iteration.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from adbg.engine.backends.base import BackwardCall, HookPlan, HookSink, Part
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.failures import suspects
from adbg.engine.backends.torch.graph import SHARED_TYPE, Services, TorchGraph, node_name
from adbg.engine.backends.torch.hooking import PlacedHook, take_off
from adbg.engine.backends.torch.tensors import bad
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.backends.torch.entry import EngineEntry

# What a node is hooked for, as bits.
_TAKEN = 1  # by name, info, index or every: report node_begin
_TAKEN_POST = 2  # and node_end
_SCREEN_OUT = 4  # look at the outgoing gradients
_SCREEN_IN = 8  # look at the incoming ones
_FEEDS = 16  # keep the parts it gives to a summed gradient
_SUMMED = 32  # drop the parts it was given, once it ran
_HAS_PRE = 64
_HAS_POST = 128
_HAS = _HAS_PRE | _HAS_POST
_ONLY_SCREENED = _SCREEN_OUT | _HAS_POST
_NEEDS_PRE = _TAKEN | _SCREEN_IN
_NEEDS_POST = _TAKEN_POST | _SCREEN_OUT | _FEEDS | _SUMMED

_task_id = private.task_id
_vector_norm = torch.linalg.vector_norm


class TorchCall(TorchGraph, BackwardCall):
    """See ``BackwardCall``. ``task``: torch's id of the running graph task, known once a hook fired or a nested call
    began."""

    def __init__(
        self,
        entry_point: EngineEntry,
        sink: HookSink,
        services: Services,
        roots: Sequence[Any],
        *,
        number: int,
        parent: TorchCall | None,
        parent_key: int | None,
        depth: int,
        arguments: Arguments,
        location: SourceLine | None,
        thread: int,
    ) -> None:
        super().__init__(roots, services)
        self.number = number
        self.thread = thread
        self.parent = parent
        self.parent_key = parent_key
        self.depth = depth
        self.entry = "backward" if arguments.accumulate else "grad"
        self.create_graph = arguments.create_graph
        self.location = location
        self.task: int | None = None
        self._wanted = arguments.inputs
        self._wanted_run = arguments.accumulate
        self._entry_point = entry_point
        self._sink = sink
        self._flags = bytearray()
        self._ran = bytearray()
        self._running: int | None = None
        self._handles: list[Any] = []
        self._hooked = 0
        self._feeds: dict[int, list[tuple[int, int, int]]] = {}  # consumer -> (its slot, producer, slot there)
        self._parts: dict[int, list[Part]] = {}
        self._consumers: Counter[int] | None = None  # edges into each node
        # Gradients are recorded in the hooks, or a mode of the script watches operators: compute norms out of their
        # sight.
        self._careful = bool(self.create_graph or private.dispatch_depth() or private.function_depth())
        self._root_names = tuple(dict.fromkeys(node_name(root) for root in roots))

    @property
    def root_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._root_names

    # ---- choosing nodes

    def hook(self, plan: HookPlan) -> int:
        if plan.empty:
            return self._hooked
        if plan.screen and not self._nodes:
            self.all_edges()
        nodes = self.walk()
        if not self._flags:
            self._flags = bytearray(len(nodes))
            self._ran = bytearray(len(nodes))
        bits = _TAKEN | _TAKEN_POST if plan.post else _TAKEN
        taken: Iterable[int] = range(len(nodes))
        if plan.every and not self._hooked:
            self._take_all(plan.post)
        else:
            taken = taken if plan.every else self._taken_by(plan)
            for key in taken:
                self._want(key, bits)
        if plan.screen:
            self._want_screen()
        if plan.contributions:
            self._want_parts(taken)
        return self._hooked

    def _taken_by(self, plan: HookPlan) -> list[int]:
        chosen: set[int] = set()
        if plan.name is not None:
            chosen.update(self._named_by(plan))
        if plan.indices:
            order = self.order()
            chosen.update(order[index - 1] for index in plan.indices if 0 < index <= len(order))
        if plan.info is not None:
            if "forward_stack" in plan.needs:
                self.read_all_stacks()
            for key in range(len(self._nodes)):
                if key not in chosen and plan.info(self.info(key, plan.needs), self._stack_for(plan, key)):
                    chosen.add(key)
        return sorted(chosen)

    def _named_by(self, plan: HookPlan) -> Iterable[int]:
        """One question a distinct name; nothing but a set of types (25 ns a node) when the graph has no such name."""
        assert plan.name is not None
        verdicts: dict[type, bool] = {}
        for kind in set(map(type, self._nodes)):
            if kind.__name__ != SHARED_TYPE:
                verdicts[kind] = plan.name(kind.__name__)
            else:
                verdicts[kind] = True
        if not any(verdicts.values()):
            return
        for key, node in enumerate(self._nodes):
            kind = type(node)
            if verdicts[kind] and (kind.__name__ != SHARED_TYPE or plan.name(self.name(key))):
                yield key

    def _stack_for(self, plan: HookPlan, key: int) -> Sequence[SourceLine]:
        return self.forward_stack(key)[0] if "forward_stack" in plan.needs else ()

    def _want_screen(self) -> None:
        """Every gradient is looked at once, as the output of the node that made it; as the input too where it may be
        another by then: where several are summed, at the roots, at the leaves (tensor hooks, gradients changed in
        place), at the nodes of ``autograd.Function``s and at those that they give to."""
        all_edges = self.all_edges()
        nodes, flags, keep, screen = self._nodes, self._flags, self._handles.append, self._screen
        quick = not self._careful and not self._hooked
        slots: dict[Any, int] = {}  # slots of a node that an edge leads to, as bits
        incoming = set(self._root_nodes)
        seen_slots = slots.get
        for key, edges in enumerate(all_edges):
            if not edges:
                incoming.add(nodes[key])
            else:
                if quick:
                    keep(nodes[key].register_hook(PlacedHook(screen, key)))
                    flags[key] = _ONLY_SCREENED
                else:
                    self._want(key, _SCREEN_OUT)
            for node, slot in edges:
                bits = seen_slots(node, 0)
                if bits >> slot & 1:
                    incoming.add(node)
                slots[node] = bits | 1 << slot
        if quick:
            self._hooked = len(self._handles)
        custom = {kind for kind in set(map(type, nodes)) if is_custom(kind)}  # 25 ns a node
        for key, node in enumerate(nodes if custom else ()):
            if type(node) in custom:
                incoming.add(node)
                incoming.update(below for below, _ in all_edges[key])
        for node in incoming:
            key = self.index.get(node, -1)
            if key >= 0:
                self._want(key, _SCREEN_IN)

    def _want_parts(self, taken: Iterable[int]) -> None:
        wanted = set(taken)
        if not wanted:  # the common case of a breakpoint that matches nothing: 0.4 us a node saved
            return
        into: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for key, edges in enumerate(self.all_edges()):
            for slot, (below, to_slot) in enumerate(edges):
                producer = self.index.get(below, -1)
                if producer in wanted:
                    into.setdefault((producer, to_slot), []).append((key, slot))
        for (producer, to_slot), consumers in into.items():
            if len(consumers) < 2:
                continue
            self._want(producer, _SUMMED)
            for key, slot in consumers:
                feed = (slot, producer, to_slot)
                feeds = self._feeds.setdefault(key, [])
                if feed not in feeds:
                    feeds.append(feed)
                    self._want(key, _FEEDS)

    def _take_all(self, post: bool) -> None:
        """Hook every node of a graph that has no hook yet: the common case, without a question a node."""
        keep, before, after = self._handles.append, self._before, self._after
        for key, node in enumerate(self._nodes):
            keep(node.register_prehook(PlacedHook(before, key)))
            if post:
                keep(node.register_hook(PlacedHook(after, key)))
        bits = _TAKEN | _HAS_PRE | ((_TAKEN_POST | _HAS_POST) if post else 0)
        self._hooked = len(self._nodes)
        self._flags = bytearray([bits]) * self._hooked

    def _want(self, key: int, bits: int) -> None:
        """Hook ``key`` for ``bits``. A node that ran is left alone; the one at hand can still get a post hook."""
        at_hand = key == self._running
        if self._ran[key] and not at_hand:
            return
        old = self._flags[key]
        new = old | bits
        if new == old:
            return
        if new & _NEEDS_PRE and not old & _HAS_PRE and not at_hand:
            self._handles.append(self._nodes[key].register_prehook(PlacedHook(self._before, key)))
            new |= _HAS_PRE
        if new & _NEEDS_POST and not old & _HAS_POST:
            hook = PlacedHook(self._screen if bits == _SCREEN_OUT and not self._careful else self._after, key)
            self._handles.append(self._nodes[key].register_hook(hook))
            new |= _HAS_POST
        if not old & _HAS:
            self._hooked += 1
        self._flags[key] = new

    def unhook(self) -> None:
        handles, self._handles = self._handles, []
        take_off(handles)
        self._flags = bytearray(len(self._flags))
        self._hooked = 0
        self._feeds.clear()
        self._parts.clear()

    def finish(self) -> None:
        """The call is over: no hook, no node, no tensor is kept."""
        self.unhook()
        self._flags = bytearray()
        self.release()

    # ---- the hooks

    def _before(self, key: int, grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if _task_id() != self.task and not self._is_mine(key):
            return None
        self._running = key
        self._ran[key] = 1
        bits = self._flags[key]
        if bits & _TAKEN or (bits & _SCREEN_IN and self._any_bad(grad_outputs)):
            return self._sink.node_begin(self, key, grad_outputs)
        return None

    def _after(self, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if _task_id() != self.task and not self._is_mine(key):
            return None
        self._running = None
        self._ran[key] = 1
        bits = self._flags[key]
        replaced = None
        if bits & _TAKEN_POST or (bits & _SCREEN_OUT and self._any_bad(grad_inputs)):
            replaced = self._sink.node_end(self, key, grad_inputs, grad_outputs)
            if not grad_inputs:
                replaced = None  # an accumulate node gives nothing on; torch refuses any answer
        if bits & (_FEEDS | _SUMMED):
            self._parts.pop(key, None)
            for slot, producer, to_slot in self._feeds.get(key, ()):
                value = (grad_inputs if replaced is None else replaced)[slot]
                self._parts.setdefault(producer, []).append(Part(to_slot, key, value))
        return replaced

    def _screen(self, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """``_after`` for a node that is only screened, as short as it can be: 0.3 us and a norm of 1.2 us a gradient.

        A tensor that is passed on twice is looked at once. One that the node was given itself (an addition) is looked
        at again: a tensor hook, or a change in place, came between (tiny LSTM: no difference, 2.02 of plain).
        """
        if _task_id() != self.task and not self._is_mine(key):
            return None
        if self._flags[key] != _ONLY_SCREENED:
            return self._after(key, grad_inputs, grad_outputs)
        self._ran[key] = 1
        looked = None
        try:
            for value in grad_inputs:
                if value is not None and value is not looked:
                    looked = value
                    figure = _vector_norm(value).item()
                    if figure - figure != 0 and bad(value):
                        return self._after(key, grad_inputs, grad_outputs)
        except Exception:  # no norm for this kind of tensor: the long way
            return self._after(key, grad_inputs, grad_outputs)
        return None

    def _is_mine(self, key: int) -> bool:
        """Does the running graph task belong to this call? A nested call (or an expression of a person) may run over
        the same nodes, and an accumulate node is shared by all threads that train the same parameter."""
        task = _task_id()
        if self.task is None:
            if self._entry_point.passing() or self._entry_point.tasks.get(task, self) is not self:
                return False
            if threading.get_ident() != self.thread and self._is_foreign(key):
                return False
            self.learn_task(task)
        return task == self.task

    def _is_foreign(self, key: int) -> bool:
        """Asked on a thread that did not begin this call, while its task is not known: may the task be another's?

        A thread of torch (past 60 nested calls, of a device) has nothing of Python below a hook; a thread of the
        script that runs a backward of its own has.
        """
        below = sys._getframe(2).f_back  # 0 is this function, 1 _is_mine, 2 the hook
        if below is not None or key >= len(self._nodes):  # no nodes: the call ended while the other's hooks ran
            return True
        node = self._nodes[key]
        others = [call for call in list(self._entry_point.open) if call.thread != self.thread and call.task is None]
        # Not by key_of: it would walk a graph that its own thread may be walking now.
        return any(node in call._nodes for call in others)

    def _any_bad(self, gradients: tuple[Any, ...]) -> bool:
        if self._careful:
            with private.undisturbed():
                return any(value is not None and bad(value) for value in gradients)
        return any(value is not None and bad(value) for value in gradients)

    def learn_task(self, task: int) -> None:
        self.task = task
        if task != -1:  # compiled autograd runs outside a graph task
            self._entry_point.tasks[task] = self

    # ---- answers

    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        parts = self._parts.get(key, ())
        if self._consumers is None:
            self._consumers = Counter(itertools.chain.from_iterable(self.producers()))
        edges = self._consumers[key]
        is_root = key in self.roots()
        if edges + is_root < 2:
            return (), "one consumer only: the gradient is not a sum"
        if not parts:
            return (), "not kept: set a breakpoint on this node before its consumers run"
        missing = edges - len(parts)
        why = []
        if missing:
            why.append(
                f"{missing} of {edges} were not kept (they ran before, gave nothing, or feed another slot alone)"
            )
        if is_root:
            why.append("the gradient given to backward is part of the sum")
        return list(parts), "; ".join(why)

    def failed_nodes(self, error: BaseException) -> Sequence[tuple[int, str]]:
        self.walk()
        running = self._running
        if running is not None and not self._flags[running] & _HAS_POST:
            running = None  # without a post-hook it may well have run
        return suspects(self, error, running)


def is_custom(kind: type) -> bool:
    """Is it the type of the nodes of an ``autograd.Function``, whose backward is Python?"""
    return private.function_base is not None and issubclass(kind, private.function_base)


class Arguments:
    """What was passed to ``run_backward`` (torch/csrc/autograd/python_engine.cpp, THPEngine_run_backward)."""

    __slots__ = ("accumulate", "create_graph", "inputs", "outputs")

    _NAMES = ("tensors", "grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable", "accumulate_grad")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(self._NAMES, args, strict=False))
        given.update(kwargs)
        self.outputs = _sequence(given.get("tensors"))
        self.create_graph = bool(given.get("create_graph", False))
        self.inputs = _sequence(given.get("inputs"))
        self.accumulate = bool(given.get("accumulate_grad", False))


def _sequence(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
