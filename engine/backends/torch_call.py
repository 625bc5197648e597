"""One running backward call: which nodes are hooked, and what happens when a hook fires.

Hooks fire on the engine's threads: for CPU nodes the thread that called backward (another one past 60 nested calls). A hook holds
the call and the node's key, never the node: a node held by its own hook is a cycle through C++ that nothing collects. Every handle is
removed when the call ends, for an accumulate node lives as long as its parameter and would fire once more per iteration.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from adbg.engine.backends import torch_private as private
from adbg.engine.backends.base import BackwardCall, HookPlan, HookSink, Part
from adbg.engine.backends.torch_failures import suspects
from adbg.engine.backends.torch_graph import Services, TorchGraph, node_name
from adbg.engine.backends.torch_tensors import bad
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.backends.torch_entry import EngineEntry

# What a node is hooked for, as bits.
_TAKEN = 1  # by name, info, index or every: report node_begin
_TAKEN_POST = 2  # and node_end
_SCREEN_OUT = 4  # look at the outgoing gradients
_SCREEN_IN = 8  # look at the incoming ones
_FEEDS = 16  # keep the parts it gives to a summed gradient
_SUMMED = 32  # drop the parts it was given, once it ran
_HAS_PRE = 64
_HAS_POST = 128
_NEEDS_PRE = _TAKEN | _SCREEN_IN
_NEEDS_POST = _TAKEN_POST | _SCREEN_OUT | _FEEDS | _SUMMED

_task_id = private.task_id
_is_grad_enabled = torch.is_grad_enabled


class TorchCall(TorchGraph, BackwardCall):
    """See ``BackwardCall``. ``task``: torch's id of the running graph task, known once a hook fired or a nested call began."""

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
    ) -> None:
        super().__init__(roots, services)
        self.number = number
        self.thread = threading.get_ident()
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
        self._root_names = tuple(dict.fromkeys(_names(roots, services)))

    @property
    def root_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._root_names

    # ---- choosing nodes

    def hook(self, plan: HookPlan) -> int:
        if plan.empty:
            return self._hooked
        nodes = self.walk()
        if not self._flags:
            self._flags = bytearray(len(nodes))
            self._ran = bytearray(len(nodes))
        taken: Iterable[int] = range(len(nodes)) if plan.every else self._taken_by(plan)
        bits = _TAKEN | _TAKEN_POST if plan.post else _TAKEN
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
        """One lookup by type a node (25 ns) and one question a distinct name."""
        assert plan.name is not None
        names = self._services.names
        verdicts: dict[type, bool] = {}
        for key, node in enumerate(self._nodes):
            kind = type(node)
            verdict = verdicts.get(kind)
            if verdict is None:
                name = self.name(key)
                verdict = plan.name(name)
                if kind in names:  # a type with several names is asked again
                    verdicts[kind] = verdict
            if verdict:
                yield key

    def _stack_for(self, plan: HookPlan, key: int) -> Sequence[SourceLine]:
        return self.forward_stack(key)[0] if "forward_stack" in plan.needs else ()

    def _want_screen(self) -> None:
        """Every gradient is looked at once: as the output of the node that made it; where several are summed, and at the roots,
        as the input."""
        seen: set[Any] = set()
        summed: set[Any] = set()
        for key, node in enumerate(self._nodes):
            edges = node.next_functions
            if edges:
                self._want(key, _SCREEN_OUT)
            for edge in edges:
                if edge in seen:
                    summed.add(edge[0])
                else:
                    seen.add(edge)
        summed.discard(None)
        for node in (*self._root_nodes, *summed):
            key = self._index.get(node)
            if key is not None:
                self._want(key, _SCREEN_IN)

    def _want_parts(self, taken: Iterable[int]) -> None:
        wanted = set(taken)
        into: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for key, node in enumerate(self._nodes):
            for slot, (below, to_slot) in enumerate(node.next_functions):
                producer = self._index.get(below) if below is not None else None
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
            self._handles.append(self._nodes[key].register_prehook(functools.partial(self._before, key)))
            new |= _HAS_PRE
        if new & _NEEDS_POST and not old & _HAS_POST:
            self._handles.append(self._nodes[key].register_hook(functools.partial(self._after, key)))
            new |= _HAS_POST
        if not old & (_HAS_PRE | _HAS_POST):
            self._hooked += 1
        self._flags[key] = new

    def unhook(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
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
        if _task_id() != self.task and not self._is_mine():
            return None
        self._running = key
        self._ran[key] = 1
        bits = self._flags[key]
        if bits & _TAKEN or (bits & _SCREEN_IN and _any_bad(grad_outputs)):
            return self._sink.node_begin(self, key, grad_outputs)
        return None

    def _after(self, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if _task_id() != self.task and not self._is_mine():
            return None
        self._running = None
        self._ran[key] = 1
        bits = self._flags[key]
        replaced = None
        if bits & _TAKEN_POST or (bits & _SCREEN_OUT and _any_bad(grad_inputs)):
            replaced = self._sink.node_end(self, key, grad_inputs, grad_outputs)
            if not grad_inputs:
                replaced = None  # an accumulate node gives nothing on; torch refuses any answer
        if bits & (_FEEDS | _SUMMED):
            self._parts.pop(key, None)
            for slot, producer, to_slot in self._feeds.get(key, ()):
                value = (grad_inputs if replaced is None else replaced)[slot]
                self._parts.setdefault(producer, []).append(Part(to_slot, key, value))
        return replaced

    def _is_mine(self) -> bool:
        """Does the running graph task belong to this call? A nested call (or an expression of a person) may run over the same nodes,
        and an accumulate node is shared by all threads that train the same parameter."""
        task = _task_id()
        if self.task is None:
            if self._entry_point.passing() or self._entry_point.tasks.get(task, self) is not self:
                return False
            self.learn_task(task)
        return task == self.task

    def learn_task(self, task: int) -> None:
        self.task = task
        if task != -1:  # compiled autograd runs outside a graph task
            self._entry_point.tasks[task] = self

    # ---- answers

    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        parts = self._parts.get(key, ())
        edges = sum(1 for below in self.producers() for producer in below if producer == key)
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


def _names(roots: Sequence[Any], services: Services) -> Iterable[str]:
    for root in roots:
        yield node_name(root, services.names)


def _any_bad(gradients: tuple[Any, ...]) -> bool:
    if _is_grad_enabled() or private.dispatch_depth() or private.function_depth():
        with private.undisturbed():
            return any(value is not None and bad(value) for value in gradients)
    for value in gradients:
        if value is not None and bad(value):
            return True
    return False
