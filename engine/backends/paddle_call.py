"""One running backward call of Paddle: which nodes are hooked, and what happens when a hook fires.

Hooks fire on the thread that called backward. They hold the call and the node's key. A hook that is not of the
innermost call of its thread passes: a nested call, or an expression of a person, may run over the same accumulate
nodes. Nothing of adbg's own is ever raised into Paddle (an exception there would become an OSError of the script's);
what a person asked for (kill) is, and the entry turns it back into what it was.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.backends import paddle_private as private
from adbg.engine.backends.base import BackwardCall, HookPlan, HookSink, Part
from adbg.engine.backends.paddle_failures import error_text, suspects
from adbg.engine.backends.paddle_graph import PYLAYER, PaddleGraph, Services
from adbg.engine.backends.paddle_slots import flat_slots, rebuilt, replaced_slots
from adbg.engine.backends.paddle_stacks import framework_name
from adbg.engine.backends.paddle_tensors import bad, stands_in
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.backends.paddle_entry import EngineEntry

# What a node is hooked for, as bits.
_TAKEN = 1  # by name, info, index or every: report node_begin
_TAKEN_POST = 2  # and node_end
_SCREEN_OUT = 4  # look at the outgoing gradients
_SCREEN_IN = 8  # look at the incoming ones
_FEEDS = 16  # keep the parts it gives to a summed gradient
_SUMMED = 32  # drop the parts it was given, once it ran
_TRACK = 64  # know that it runs: a PyLayer, whose backward may start a call
_TICK = 128  # the node behind an accumulate node: its turn says that the other is done
_WARN = 256  # Paddle would crash on an undefined gradient here
_HAS_PRE = 512
_HAS_POST = 1024
_NEEDS_PRE = _TAKEN | _SCREEN_IN | _TRACK | _TICK | _WARN
_NEEDS_POST = _TAKEN_POST | _SCREEN_OUT | _FEEDS | _SUMMED
_HAS = _HAS_PRE | _HAS_POST
_REPORTS = _TAKEN | _TAKEN_POST | _SCREEN_IN | _SCREEN_OUT | _FEEDS | _SUMMED
_MOST_PASSED = 1000  # sets of kinds that are remembered as of no interest to a plan

_UNDEFINED = (
    "{node} is about to run with an undefined gradient, and Paddle usually dies of that (SIGSEGV){why}. "
    "Let the PyLayer return zeros instead of None: stop after it and set grad_inputs[…] = paddle.zeros(…)"
)


class PaddleCall(PaddleGraph, BackwardCall):
    """See ``BackwardCall``."""

    def __init__(
        self,
        entry_point: EngineEntry,
        sink: HookSink,
        services: Services,
        roots: Sequence[Any],
        *,
        number: int,
        parent: PaddleCall | None,
        parent_key: int | None,
        depth: int,
        entry: str,
        create_graph: bool,
        inputs: Sequence[Any],
        location: SourceLine | None,
    ) -> None:
        super().__init__(roots, services)
        self.number = number
        self.thread = threading.get_ident()
        self.parent = parent
        self.parent_key = parent_key
        self.depth = depth
        self.entry = entry
        self.create_graph = create_graph
        self.location = location
        self.origin: BaseException | None = None
        self.returned: dict[str, str] = {}  # by printed name: what its PyLayer gave back last, in words
        self._wanted = tuple(inputs)
        self._entry_point = entry_point
        self._sink = sink
        self._flags: list[int] = []
        self._ran = bytearray()
        self._running: int | None = None
        self._handles: list[tuple[Any, Any]] = []  # (node, number of its pre-hook) or (None, handle)
        self.placed: list[Any] = []  # post hooks: see ``EngineEntry.keep``
        self._hooked = 0
        self._outs: dict[int, tuple[Any, ...]] = {}  # incoming gradients of nodes that are under way
        self._edited: dict[int, list[Any]] = {}  # by PyLayer: what it shall get instead, None as it is
        self._gathered: list[Any] = []
        self._handing: list[Any] | None = None
        self._executing: frozenset[int] | None = None
        self._custom: int | None = None  # the PyLayer that has just returned
        self._pending: int | None = None  # an accumulate node whose end is still to be reported
        self._root_names: tuple[str, ...] | None = None
        self._turns: dict[int, list[int]] = {}  # without pre-hooks: nodes whose turn comes when a node ended
        self._feeds: dict[int, list[tuple[int, int, int]]] = {}
        self._parts: dict[int, list[Part]] = {}

    @property
    def root_names(self) -> tuple[str, ...]:  # type: ignore[override]
        if self._root_names is None:
            survey = self.survey()
            named = survey.roots if survey is not None else None
            if named is None:
                named = tuple(dict.fromkeys(framework_name(root.name()) for root in self._root_nodes))
            self._root_names = named
        return self._root_names

    # ---- choosing nodes

    def hook(self, plan: HookPlan) -> int:
        if plan.empty:
            return self._hooked
        if self._takes_nothing(plan):
            return self._hooked
        nodes = self.walk()
        self._prepare()
        bits = _TAKEN | _TAKEN_POST if plan.post else _TAKEN
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
        if len(passed) < _MOST_PASSED:
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
                self._want(key, _TRACK)

    @staticmethod
    def _rest() -> None:
        native = private.native()
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
                self._want(key, _SCREEN_OUT)
            for producer in below:
                fed[producer] = fed.get(producer, 0) + 1
        for key in {*self.roots(), *(key for key, count in fed.items() if count > 1)}:
            self._want(key, _SCREEN_IN)

    def _want_parts(self, taken: Iterable[int]) -> None:
        if private.native() is None:
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
            self._want(producer, _SUMMED)
            for key, slot in consumers:
                feeds = self._feeds.setdefault(key, [])
                if (slot, producer, to_slot) not in feeds:
                    feeds.append((slot, producer, to_slot))
                    self._want(key, _FEEDS)

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
        if not old & _REPORTS and new & _REPORTS:
            self._hooked += 1
        if new & _NEEDS_PRE and not old & _HAS_PRE and not at_hand:
            self._place_pre(key)
        if new & _NEEDS_POST and not old & _HAS_POST:
            self._flags[key] |= _HAS_POST
            self._place_post(key)

    def _place_pre(self, key: int) -> None:
        self._flags[key] |= _HAS_PRE
        native = private.native()
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
        if not self._flags[key] & _HAS_POST:
            self._flags[key] |= _HAS_POST
            self._place_post(key)

    def _place_post(self, key: int) -> None:
        if self.is_accumulate(key) or self.ends_unseen(key):
            self._want(key, _TRACK)
            order = list(self.order())
            place = order.index(key) + 1 if key in order else len(order)
            if place < len(order) and private.native() is not None:
                self._want(order[place], _TICK)
        elif self.is_custom(key):
            self._want(key, _TRACK)  # its end is told by the function around PyLayer.backward
        else:
            hook = functools.partial(self._after, key)
            self.placed.append(hook)
            self._handles.append((None, self._nodes[key]._register_post_hook(hook)))

    def unhook(self) -> None:
        if not self._flags:
            return
        handles, self._handles = self._handles, []
        native = private.native()
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

    @property
    def reached(self) -> bool:
        """A hook fired: the engine ran nodes of this call."""
        return any(self._ran)

    def finish(self) -> None:
        """The call is over: no hook, no node, no tensor is kept."""
        self.unhook()
        self._flags = []
        self._outs.clear()
        self._edited.clear()
        self._gathered, self._handing = [], None
        self.placed = []  # they hold this call: with the collector off, every backward's graph would stay
        self.origin = None
        self.release()

    # ---- hooks in front of a node

    def _before_one(self, key: int, gradient: Any) -> Any:
        if self._entry_point.top() is not self:
            return None
        replaced = self._begin(key, (gradient,))
        return replaced[0] if replaced is not None else None

    def _gather(self, key: int, place: int, last: int, gradient: Any) -> Any:
        """A node of several incoming gradients: its hooks fire one after the other, the last one reports."""
        if self._entry_point.top() is not self:
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
        if self._handing is None or self._entry_point.top() is not self:
            return None
        return self._handing[place]

    def _begin(self, key: int, gradients: tuple[Any, ...]) -> list[Any] | None:
        """The turn of ``key``. Returns None, or one entry per slot: a tensor to go on with, None to keep what is
        there."""
        try:
            self.settle()
            self._running = key
            self._ran[key] = 1
            bits = self._flags[key]
            if self.is_accumulate(key) or (bits & _NEEDS_POST and self.ends_unseen(key)):
                self._pending = key
                self._outs[key] = gradients
            elif bits & _NEEDS_POST and (bits & _TAKEN_POST or self.is_custom(key)):
                self._outs[key] = gradients
            replaced: tuple[Any, ...] | None = None
            if bits & _WARN and not any(value is not None for value in gradients):
                replaced = self._warn(key, gradients)
            if bits & _TAKEN or (bits & _SCREEN_IN and any(value is not None and bad(value) for value in gradients)):
                replaced = self._sink.node_begin(self, key, gradients) or replaced
            if replaced is None:
                return None
            safe = replaced_slots(gradients, replaced, stands_in)
            if self.is_custom(key):
                self._edited[key] = safe
            if key in self._outs:
                self._outs[key] = tuple(
                    new if new is not None else old for old, new in zip(gradients, safe, strict=True)
                )
            return safe
        except Exception:
            return None
        except BaseException as error:
            self._entry_point.abort(error)
            raise

    def _needed(self) -> frozenset[int]:
        if self._executing is None:
            self._executing = frozenset(self.order())
        return self._executing

    def _warn(self, key: int, gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        tell: Callable[..., tuple[Any, ...] | None] | None = getattr(self._sink, "node_warning", None)
        if tell is None:
            return None
        makers = [
            self.unique_name(other)
            for other, below in enumerate(self.producers())
            if key in below and self.is_custom(other)
        ]
        why = f": {', '.join(makers[:3])} returned None for it" if makers else ""
        return tell(self, key, gradients, _UNDEFINED.format(node=self.unique_name(key), why=why))

    def settle(self) -> None:
        """A node without a hook behind it (accumulate, concat): its end is told when the next node's turn comes."""
        key, self._pending = self._pending, None
        if key is None:
            return
        gradients = self._outs.pop(key, ())
        self._running = None
        if self._flags and self._flags[key] & _TAKEN_POST:
            try:
                self._sink.node_end(self, key, (), gradients)
            except Exception:  # the next node's turn has come: it must not be lost
                self._running = None
        self._drop_parts(key)
        self._take_turns(key)

    # ---- behind a node

    def _after(self, key: int, outputs: Any, inputs: Any) -> Any:
        """Post hook of an operator. Paddle dies of a wrong answer: the outputs themselves, or as many of the same
        kind."""
        answer = self._entry_point.answer
        if self._entry_point.top() is not self:
            return answer(outputs)
        try:
            grad_inputs = flat_slots(outputs)
            replaced = self._end(key, grad_inputs, self._outs.pop(key, ()) or flat_slots(inputs))
            if replaced is None:
                return answer(outputs)
            return answer(rebuilt(outputs, replaced_slots(grad_inputs, replaced, stands_in)))
        except Exception:
            return answer(outputs)
        except BaseException as error:
            self._entry_point.abort(error)
            raise

    def _end(self, key: int, grad_inputs: tuple[Any, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
        self._running = None
        self._ran[key] = 1
        bits = self._flags[key]
        replaced = None
        if bits & _TAKEN_POST or (
            bits & _SCREEN_OUT and any(value is not None and bad(value) for value in grad_inputs)
        ):
            replaced = self._sink.node_end(self, key, grad_inputs, gradients)
        if bits & _FEEDS:
            values = grad_inputs if replaced is None else replaced
            for slot, producer, to_slot in self._feeds.get(key, ()):
                if slot < len(values):
                    self._parts.setdefault(producer, []).append(Part(to_slot, key, values[slot]))
        self._drop_parts(key)
        self._take_turns(key)
        return replaced

    def _drop_parts(self, key: int) -> None:
        if self._flags and self._flags[key] & _SUMMED:
            self._parts.pop(key, None)

    def _take_turns(self, before: int) -> None:
        """Without pre-hooks: the nodes that run next, by prediction. Their gradients cannot be seen yet."""
        for key in self._turns.pop(before, ()):
            self._ran[key] = 1
            if self._flags[key] & _TAKEN:
                self._sink.node_begin(self, key, ())

    def start(self) -> None:
        """Without pre-hooks: the first node's turn comes now."""
        if self._turns:
            self._take_turns(-1)

    # ---- around a PyLayer

    def custom_key(self, printed: str) -> int | None:
        """The PyLayer node at hand: the one whose turn it is, else the only one of that name."""
        running = self._running
        if running is not None and self._printed and self._printed[running] == printed:
            return running
        named = [key for key, name in enumerate(self.printed()) if name == printed]
        return named[0] if len(named) == 1 else None

    def custom_begin(self, key: int, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """What the PyLayer gets instead of ``arguments``; None: those.

        Paddle runs the hooks in front of a PyLayer and then forgets what they returned: an edit is handed over here.
        Where there are no hooks in front of nodes, its arguments are its incoming gradients.
        """
        if not self._flags:
            return None
        if private.native() is None:
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
            if not self._flags or not self._flags[key] & (_NEEDS_POST | _HAS_POST):
                self._running = None
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
        except Exception:
            return result
        except BaseException as error:
            self._entry_point.abort(error)
            raise

    def watch_undefined(self, printed: str, key: int | None) -> None:
        """A PyLayer returned None: have the operators that it feeds looked at before they run."""
        if private.native() is None:
            return
        self.walk()
        self._prepare()
        makers = [key] if key is not None else [other for other, name in enumerate(self.printed()) if name == printed]
        for maker in makers:
            for below in self.producers()[maker]:
                if not self.is_accumulate(below) and not self.is_custom(below):
                    self._want(below, _WARN)
        self._rest()

    # ---- answers

    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        parts = self._parts.get(key, ())
        edges = sum(below.count(key) for below in self.producers())
        is_root = key in self.roots()
        if edges + is_root < 2:
            return (), "one consumer only: the gradient is not a sum"
        if not parts:
            return (), "not kept: set a breakpoint on this node before its consumers run"
        why = []
        if edges - len(parts):
            why.append(f"{edges - len(parts)} of {edges} were not kept (they ran before, or feed another slot alone)")
        if is_root:
            why.append("the gradient given to backward is part of the sum")
        return list(parts), "; ".join(why)

    def original_error(self, error: BaseException) -> BaseException:
        return self.origin if self.origin is not None else error

    def error_text(self, error: BaseException) -> str:
        return error_text(error, self.origin)

    def failed_nodes(self, error: BaseException) -> Sequence[tuple[int, str]]:
        self.walk()
        running = self._running
        if running is not None and self._flags and not self._flags[running] & _HAS_POST and not self.is_custom(running):
            running = None  # without a hook behind it, it may well have run
        return suspects(self, error, self.origin, running, self.returned)

    def at_custom(self) -> bool:
        """A PyLayer has just returned: its result may still be completed."""
        return self._custom is not None
