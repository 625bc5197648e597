"""The hooks of one call of Paddle's engine: where they are, and what happens when one fires.

A hook in front of a node is a tensor's own (``native.symbols``); behind an operator it is Paddle's post hook, behind a
PyLayer the function that stands around its backward, behind an accumulate node the turn of the next one.

Hooks fire on the thread that called backward. They hold the call and the node's key. A hook that is not of the
innermost call of its thread passes: a nested call, or an expression of the user's, may run over the same accumulate
nodes. Nothing of adbg's own is ever raised into Paddle (an exception there would become an OSError of the script's);
what the user asked for (kill) is, and the entry turns it back into what it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import HookPlan, HookSink
from adbg.engine.backends.common.hooking import (
    FEEDS,
    HAS_POST,
    HAS_PRE,
    NEEDS_POST,
    SCREEN_IN,
    SCREEN_OUT,
    SUMMED,
    TAKEN,
    TAKEN_POST,
    EdgesInto,
    Hooks,
)
from adbg.engine.backends.common.hooking import NEEDS_PRE as NEEDED_PRE
from adbg.engine.backends.common.shield import aborting
from adbg.engine.backends.paddle.failures import undefined_note
from adbg.engine.backends.paddle.graph import PYLAYER
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.screen import NativeScreen
from adbg.engine.backends.paddle.slots import (
    Fed,
    arrived,
    edges_into,
    flat_slots,
    handed_on,
    reached,
    rebuilt,
    replaced_slots,
    screened,
)
from adbg.engine.backends.paddle.stacks import framework_name
from adbg.engine.backends.paddle.tensors import bad, kept_copy, stands_in
from adbg.engine.outside import own

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.call import PaddleCall
    from adbg.engine.backends.paddle.entry import EngineEntry

# What a node is hooked for, as bits, beside those of every framework.
TRACK = 256  # know that it runs: a PyLayer, whose backward may start a call
TICK = 512  # the node behind an accumulate node: its turn says that the other is done
WARN = 1024  # Paddle would crash on an undefined gradient here
HOLD = 2048  # keep what flows in until its end: many kernels write what they make over it
HIDES = 4096  # no post hook of Paddle's shows what leaves it: its end is told when the next node's turn comes
NEEDS_PRE = NEEDED_PRE | TRACK | TICK | WARN | HOLD
REPORTS = TAKEN | TAKEN_POST | SCREEN_IN | SCREEN_OUT | FEEDS | SUMMED


class PaddleHooks(Hooks):
    """See ``Hooks``. ``placed``: the post hooks, see ``EngineEntry.keep``."""

    flags: list[int]
    placed: list[Any]

    def __init__(self, call: PaddleCall, sink: HookSink, entry_point: EngineEntry) -> None:
        super().__init__(call, call, sink)
        self.call: PaddleCall = call
        self.graph: PaddleCall = call
        self.flags, self.placed = [], []
        self.returned: dict[str, str] = {}  # by printed name: what its PyLayer gave back last, in words
        self._entry_point = entry_point
        self._partial = bool(call.wanted)  # ``paddle.grad``: only what leads to its inputs runs
        self._nodes: list[Any] = []
        self._fed = Fed(call)
        self._handles: list[tuple[Any, Any]] = []  # (node, number of its pre-hook) or (None, handle)
        self._turns: dict[int, list[int]] = {}  # without pre-hooks: nodes whose turn comes when a node ended
        self._outs: dict[int, tuple[Any, ...]] = {}  # incoming gradients of nodes that are under way
        self._edited: dict[int, list[Any]] = {}  # by PyLayer: what it shall get instead, None as it is
        self._gathered: list[Any] = []
        self._handing: list[Any] | None = None
        self._custom: int | None = None  # the PyLayer that has just returned
        self._pending: int | None = None  # an accumulate node whose end is still to be reported
        self.screen = NativeScreen()

    def hook(self, plan: HookPlan) -> int:
        return self.hooked if self.screen.takes(self, plan) else super().hook(plan)

    def _takes_nothing(self, plan: HookPlan) -> bool:
        """The usual case of a plan by name: nothing in this graph has one, and no PyLayer is there to be followed."""
        if self.flags or plan.name is None or plan.every or plan.indices or plan.info is not None or plan.screen:
            return False
        return self.graph.services.passes(plan.name, self.graph.kinds())

    def _prepare(self, plan: HookPlan | None = None) -> int:
        nodes = self._nodes = self.graph.walk()
        if self.flags:
            return len(nodes)
        self.flags, self.ran = [0] * len(nodes), bytearray(len(nodes))
        for key, printed in enumerate(self.graph.printed()):
            if printed.startswith(PYLAYER):
                self.want(key, TRACK)
        return len(nodes)

    def _rest(self) -> None:
        if (native := symbols.native()) is not None:
            native.rest()

    def _names(self) -> Iterable[str]:
        return map(framework_name, self.graph.printed())

    def _want_screen(self) -> None:
        """Every gradient is looked at as it leaves the node that made it; what came in is held meanwhile: the verdict
        rests on it (1.5 us a node, and the kernel takes memory of its own for what it makes)."""
        leaving, arriving = screened(self.graph)
        bits = SCREEN_OUT | (HOLD if symbols.native() is not None else 0)
        for key in leaving:
            self.want(key, bits)
        for key in arriving:
            self.want(key, SCREEN_IN)

    def _edges_into(self, taken: Iterable[int]) -> EdgesInto:
        return edges_into(self.graph, taken) if symbols.native() is not None else {}

    def want(self, key: int, bits: int) -> None:
        current = key == self.running
        if (self.ran[key] and not current) or (self._partial and key not in self._needed):
            return  # it ran; or paddle.grad takes the gradient in front of it, and its copy has no slots of its own
        old = self.flags[key]
        new = old | bits
        if new == old:
            return
        self.flags[key] = new
        if not old & REPORTS and new & REPORTS:
            self.hooked += 1
        if new & NEEDS_PRE and not old & HAS_PRE and not current:
            self._place_pre(key)
        if new & NEEDS_POST and not old & HAS_POST:
            self.flags[key] |= HAS_POST
            self._place_post(key)

    def _place_pre(self, key: int) -> None:
        self.flags[key] |= HAS_PRE
        native = symbols.native()
        if native is None:
            self._place_turn(key)
            return
        node = self._nodes[key]
        slots = native.input_slots(node.node_ptr())
        places = [(slot, rank) for slot, ranks in enumerate(slots) for rank in range(ranks)]
        if len(places) == 1:
            self._handles.append((node, native.place(node, *places[0], self._hook(self._before_one, key))))
            return
        last = len(places) - 1
        for place, (slot, rank) in enumerate(places):
            hook = self._hook(self._gather, key, place, last)
            self._handles.append((node, native.place(node, slot, rank, hook)))
        for place, (slot, rank) in enumerate(places[:-1]):  # an edit of an earlier slot can be handed over only now
            self._handles.append((node, native.place(node, slot, rank, self._hook(self._hand_over, place))))

    def _hook(self, method: Callable[..., Any], *args: Any) -> Callable[..., Any]:
        return functools.partial(aborting, self._entry_point.abort, method, *args)

    def _place_turn(self, key: int) -> None:
        """Without hooks in front of nodes: the predicted node before this one says when its turn comes."""
        if self.graph.is_custom(key):
            return  # the PyLayer's own backward is stood around
        order, place = self.graph.order(), self.graph.made_order.position[key] - 1
        if place + 1 >= len(order):  # it does not run
            return
        while place >= 0 and self.graph.is_accumulate(order[place]):
            place -= 1
        before = order[place] if place >= 0 else -1
        self._turns.setdefault(before, []).append(key)
        if before >= 0:
            self._want_end(before)

    def _want_end(self, key: int) -> None:
        if not self.flags[key] & HAS_POST:
            self.flags[key] |= HAS_POST
            self._place_post(key)

    def _place_post(self, key: int) -> None:
        if self.graph.is_accumulate(key) or self.graph.ends_unseen(key):
            self.flags[key] |= HIDES
            self.want(key, TRACK)
            order, following = self.graph.order(), self.graph.made_order.position[key] + 1
            if following < len(order) and symbols.native() is not None:
                self.want(order[following], TICK)
        elif self.graph.is_custom(key):
            self.want(key, TRACK)  # its end is told by the function around PyLayer.backward
        else:
            hook = self._hook(self._after, key)
            self.placed.append(hook)
            self._handles.append((None, self._nodes[key]._register_post_hook(hook)))

    def unhook(self) -> None:
        if not self.flags:
            return
        handles, self._handles = self._handles, []
        native = symbols.native()
        for node, handle in handles:
            if node is None:
                handle.remove()
            elif native is not None:
                native.remove(node, handle)
        self._rest()
        self.flags = [0] * len(self.flags)
        self._turns.clear()
        self.parts.clear()
        self.hooked = 0

    @functools.cached_property
    def _needed(self) -> frozenset[int]:
        return frozenset(self.graph.order())

    def clear(self) -> None:
        """The call is over: no hook and no tensor is kept."""
        self.screen.stop()
        self.unhook()
        self.flags = []
        self._outs.clear()
        self._edited.clear()
        self._gathered, self._handing = [], None
        self.placed = []  # they hold this call: with the collector off, every backward's graph would stay

    # ---- hooks in front of a node

    def _before_one(self, key: int, gradient: Any) -> Any:
        if self._entry_point.top() is not self.call:
            return None
        replaced = self._begin(key, (gradient,))
        return replaced[0] if replaced is not None else None

    def _gather(self, key: int, place: int, last: int, gradient: Any) -> Any:
        """A node of several incoming gradients: its hooks fire one after the other, the last one reports."""
        if self._entry_point.top() is not self.call:
            return None
        if place == 0:
            self._gathered, self._handing = [], None
        self._gathered.append(gradient)
        if place < last:
            return None
        gathered, self._gathered = tuple(self._gathered), []
        self._handing = replaced = self._begin(key, gathered)
        return replaced[last] if replaced is not None else None

    def _hand_over(self, place: int, gradient: Any) -> Any:
        if self._handing is None or self._entry_point.top() is not self.call:
            return None
        return self._handing[place]

    def _begin(self, key: int, gradients: tuple[Any, ...]) -> list[Any] | None:
        """The turn of ``key``. Returns None, or one entry per slot: a tensor to go on with, None to keep what is
        there."""
        try:
            edited = self.settle(key, gradients)
            self.running = key
            self.ran[key] = 1
            bits = self.flags[key]
            going = gradients if edited is None else handed_on(gradients, replaced_slots(gradients, edited, stands_in))
            self._hold(key, going)
            replaced: tuple[Any, ...] | None = None
            if bits & WARN and not any(value is not None for value in going):
                replaced = self._warn(key, going)
            if bits & TAKEN or (bits & SCREEN_IN and any(value is not None and bad(value) for value in going)):
                replaced = self.sink.node_begin(self.call, key, going) or replaced
            if replaced is None and edited is None:
                self._hold(key, going)  # its end may be of interest only now, after a stop
                return None
            safe = replaced_slots(gradients, going if replaced is None else replaced, stands_in)
            if self.graph.is_custom(key):
                self._edited[key] = safe
            self._hold(key, handed_on(gradients, safe))
            return safe
        except own(Exception):
            return None

    def _hold(self, key: int, gradients: tuple[Any, ...]) -> None:
        """What flows into a node that runs now, where its end is of interest: a kernel may write over what nobody
        holds."""
        bits = self.flags[key]
        if bits & HIDES or self.graph.is_accumulate(key):
            self._pending = key
        if bits & NEEDS_POST and (bits & (TAKEN_POST | HOLD) or self.graph.is_custom(key)):
            self._outs[key] = gradients

    def _warn(self, key: int, gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        tell: Callable[..., tuple[Any, ...] | None] | None = getattr(self.sink, "node_warning", None)
        if tell is None:
            return None
        return tell(self.call, key, gradients, undefined_note(self.graph, key))

    def settle(self, following: int | None = None, arriving: tuple[Any, ...] = ()) -> Sequence[Any] | None:
        """A node without a hook behind it (accumulate, concat): its end is told when the turn of the next one comes,
        ``following``, into which ``arriving`` flow: of what the node gave, that is all there is to see. Returns what
        was made of ``arriving`` at a stop, None where nothing was."""
        key, self._pending = self._pending, None
        if key is None:
            return None
        gradients, self.running, edited = self._outs.pop(key, ()), None, None
        bits = self.flags[key] if self.flags else 0
        try:
            given, places = reached(self.graph, self._fed, key, following, arriving)
            if bits & TAKEN_POST or (bits & SCREEN_OUT and any(bad(value) for value in given)):
                replaced = self.sink.node_end(self.call, key, given, gradients)
                if replaced is not None and len(replaced) == len(given):
                    edited = [replaced[place] if place is not None else None for place in places]
        except own(Exception):  # the next node's turn has come: it must not be lost
            self.running = None
        self._drop_parts(key)
        self._take_turns(key)
        return edited

    # ---- behind a node

    def _after(self, key: int, outputs: Any, inputs: Any) -> Any:
        """Post hook of an operator. Paddle dies of a wrong answer: the outputs themselves, or as many of the same
        kind."""
        answer = self._entry_point.answer
        if self._entry_point.top() is not self.call:
            return answer(outputs)
        try:
            grad_inputs = flat_slots(outputs)
            held = self._outs.pop(key, None)
            replaced = self._end(key, grad_inputs, arrived(flat_slots(inputs), grad_inputs) if held is None else held)
            if replaced is None:
                return answer(outputs)
            return answer(rebuilt(outputs, replaced_slots(grad_inputs, replaced, stands_in)))
        except own(Exception):
            return answer(outputs)

    def _end(self, key: int, grad_inputs: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self.running = None
        self.ran[key] = 1
        bits = self.flags[key]
        replaced = None
        if bits & TAKEN_POST or (bits & SCREEN_OUT and any(value is not None and bad(value) for value in grad_inputs)):
            replaced = self.sink.node_end(self.call, key, grad_inputs, gradients)
        if bits & FEEDS:
            self.parts.keep(key, grad_inputs if replaced is None else replaced, kept_copy)
        self._drop_parts(key)
        self._take_turns(key)
        return replaced

    def _drop_parts(self, key: int) -> None:
        if self.flags and self.flags[key] & SUMMED:
            self.parts.kept.pop(key, None)

    def _take_turns(self, before: int) -> None:
        """Without pre-hooks: the nodes that run next, by prediction. Their gradients cannot be seen yet."""
        for key in self._turns.pop(before, ()):
            self.ran[key] = 1
            if self.flags[key] & TAKEN:
                self.sink.node_begin(self.call, key, ())

    def start(self) -> None:
        """Without pre-hooks: the first node's turn comes now."""
        if self._turns:
            self._take_turns(-1)

    # ---- around a PyLayer

    def custom_key(self, printed: str) -> int | None:
        """The PyLayer node that runs: the one whose turn it is, else the only one of that name."""
        return self.graph.custom_named(printed, self.running)

    def custom_begin(self, key: int, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What the PyLayer gets instead of ``arguments``; None: those.

        Paddle runs the hooks in front of a PyLayer and then forgets what they returned: an edit is handed over here.
        Where there are no hooks in front of nodes, its arguments are its incoming gradients.
        """
        if not self.flags:
            return None
        if symbols.native() is None:
            edited = self._begin(key, flat_slots(arguments))
        else:
            edited = self._edited.pop(key, None)
        if edited is None or len(edited) != len(flat_slots(arguments)):
            return None
        return rebuilt(arguments, edited)

    def custom_end(self, key: int, result: Any, arguments: tuple[Any, ...]) -> Any:
        """The PyLayer ``key`` returned ``result``. Returns what Paddle gets."""
        try:
            gradients = self._outs.pop(key, ()) or flat_slots(arguments)
            if not self.flags or not self.flags[key] & (NEEDS_POST | HAS_POST):
                self.running = None
                return result
            given = result if isinstance(result, (tuple, list)) else (result,)
            grad_inputs = flat_slots(given)
            self._custom = key
            try:
                replaced = self._end(key, grad_inputs, gradients)
            finally:
                self._custom = None
            if replaced is None:
                return result
            safe = replaced_slots(grad_inputs, replaced, lambda old, new: old is None or stands_in(old, new))
            whole = rebuilt(given, safe)
            return whole if isinstance(result, (tuple, list)) else whole[0]
        except own(Exception):
            return result
        except BaseException as error:
            self._entry_point.abort(error)
            raise

    def watch_undefined(self, printed: str, key: int | None) -> None:
        """A PyLayer returned None: have the operators that it feeds looked at before they run."""
        if symbols.native() is None:
            return
        self._prepare()
        named = (other for other, name in enumerate(self.graph.printed()) if name == printed)
        for maker in named if key is None else (key,):
            for below in self.graph.producers()[maker]:
                if not self.graph.is_accumulate(below) and not self.graph.is_custom(below):
                    self.want(below, WARN)
        self._rest()

    def at_custom(self) -> bool:
        """A PyLayer has just returned: its result may still be completed."""
        return self._custom is not None
