"""One running backward call of Paddle: which nodes are hooked, and what happens when a hook fires.

Hooks fire on the thread that called backward. They hold the call and the node's key. A hook that is not of the
innermost call of its thread passes: a nested call, or an expression of a person, may run over the same accumulate
nodes. Nothing of adbg's own is ever raised into Paddle (an exception there would become an OSError of the script's);
what a person asked for (kill) is, and the entry turns it back into what it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import BackwardCall, HookSink, Part
from adbg.engine.backends.paddle.failures import error_text, suspects
from adbg.engine.backends.paddle.graph import Services
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.places import (
    FEEDS,
    HAS_POST,
    NEEDS_POST,
    SCREEN_IN,
    SCREEN_OUT,
    SUMMED,
    TAKEN,
    TAKEN_POST,
    WARN,
    HookPlaces,
)
from adbg.engine.backends.paddle.slots import flat_slots, rebuilt, replaced_slots
from adbg.engine.backends.paddle.stacks import framework_name
from adbg.engine.backends.paddle.tensors import bad, kept_copy, stands_in
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.entry import EngineEntry


_UNDEFINED = (
    "{node} is about to run with an undefined gradient, and Paddle usually dies of that (SIGSEGV){why}. "
    "Let the PyLayer return zeros instead of None: stop after it and set grad_inputs[…] = paddle.zeros(…)"
)


class PaddleCall(HookPlaces, BackwardCall):
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
        super().__init__(roots, services, inputs)
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
        self._entry_point = entry_point
        self._sink = sink
        self._outs: dict[int, tuple[Any, ...]] = {}  # incoming gradients of nodes that are under way
        self._edited: dict[int, list[Any]] = {}  # by PyLayer: what it shall get instead, None as it is
        self._gathered: list[Any] = []
        self._handing: list[Any] | None = None
        self._custom: int | None = None  # the PyLayer that has just returned
        self._pending: int | None = None  # an accumulate node whose end is still to be reported
        self._root_names: tuple[str, ...] | None = None

    @property
    def root_names(self) -> tuple[str, ...]:  # type: ignore[override]
        if self._root_names is None:
            survey = self.survey()
            named = survey.roots if survey is not None else None
            if named is None:
                named = tuple(dict.fromkeys(framework_name(root.name()) for root in self._root_nodes))
            self._root_names = named
        return self._root_names

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
            if self.is_accumulate(key) or (bits & NEEDS_POST and self.ends_unseen(key)):
                self._pending = key
                self._outs[key] = gradients
            elif bits & NEEDS_POST and (bits & TAKEN_POST or self.is_custom(key)):
                self._outs[key] = gradients
            replaced: tuple[Any, ...] | None = None
            if bits & WARN and not any(value is not None for value in gradients):
                replaced = self._warn(key, gradients)
            if bits & TAKEN or (bits & SCREEN_IN and any(value is not None and bad(value) for value in gradients)):
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
        if self._flags and self._flags[key] & TAKEN_POST:
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
        if bits & TAKEN_POST or (bits & SCREEN_OUT and any(value is not None and bad(value) for value in grad_inputs)):
            replaced = self._sink.node_end(self, key, grad_inputs, gradients)
        if bits & FEEDS:
            values = grad_inputs if replaced is None else replaced
            for slot, producer, to_slot in self._feeds.get(key, ()):
                if slot < len(values):
                    self._parts.setdefault(producer, []).append(Part(to_slot, key, kept_copy(values[slot])))
        self._drop_parts(key)
        self._take_turns(key)
        return replaced

    def _drop_parts(self, key: int) -> None:
        if self._flags and self._flags[key] & SUMMED:
            self._parts.pop(key, None)

    def _take_turns(self, before: int) -> None:
        """Without pre-hooks: the nodes that run next, by prediction. Their gradients cannot be seen yet."""
        for key in self._turns.pop(before, ()):
            self._ran[key] = 1
            if self._flags[key] & TAKEN:
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
            if not self._flags or not self._flags[key] & (NEEDS_POST | HAS_POST):
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
        if symbols.native() is None:
            return
        self.walk()
        self._prepare()
        makers = [key] if key is not None else [other for other, name in enumerate(self.printed()) if name == printed]
        for maker in makers:
            for below in self.producers()[maker]:
                if not self.is_accumulate(below) and not self.is_custom(below):
                    self._want(below, WARN)
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
        if running is not None and self._flags and not self._flags[running] & HAS_POST and not self.is_custom(running):
            running = None  # without a hook behind it, it may well have run
        return suspects(self, error, self.origin, running, self.returned)

    def at_custom(self) -> bool:
        """A PyLayer has just returned: its result may still be completed."""
        return self._custom is not None
