"""Calls that the extension begins, runs and writes down by itself: no Python runs for them.

``core.eager.run_backward`` is a function of the extension's then, with ours behind it. It takes a call by itself while
nothing is armed, and where one just like it was found to have nothing of interest: what that takes (a survey of the
graph, the line that called, the watch) costs 6 us, 60 in Python in a step of small operators with its cold caches.
Whatever is not plain goes to ours: nested calls, ``paddle.grad``, the first hundred calls of a process, four a second.
Where something needs such a call after all (an exception, a PyLayer, a stop at a Python line), it is made known as if
it had been told in short at its begin.

Runs on the threads that call backward; ``settle`` also on the reader thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import paddle

from adbg.engine.backends.common.shield import aborting
from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.calls.brief import found
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.census import Survey
from adbg.engine.backends.paddle.native.core import core
from adbg.engine.backends.paddle.open import Open
from adbg.engine.outside import own
from adbg.engine.types import BriefCall, BriefRuns

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.entry import EngineEntry

_SLOW, _UNARMED, _ARMED = 0, 1, 2
_CALL, _ITERATION = 1, 2


class Quick:
    """Of one entry. It counts the calls, with the extension and without."""

    def __init__(self, entry: EngineEntry) -> None:
        self._entry = entry
        self._module: Any = None
        self._counts = [0, 0]
        self._mode = _SLOW
        self._lock = threading.Lock()

    # ---- in and out

    def function(self, ours: Any, original: Any, partial: bool) -> Any:
        """What stands in for ``original``, with ``ours`` behind it; None: it is ``ours`` that does."""
        if self._module is None and not self._begin():
            return None
        return self._module.paddle_entry(ours, original, partial)

    def _begin(self) -> bool:
        noted, nodes = core(), symbols.native()
        if noted is None or nodes is None or noted.leaf_class == 0:
            return False
        try:
            noted.module.paddle_entry_begin(
                paddle.Tensor,
                *nodes.leaf_offsets(),
                noted.leaf_class,
                self._entry.quick_ended,
                functools.partial(aborting, self._entry.abort, self._found),
                private.quick_has_grad,
                *self._counts,
            )
        except own(LookupError):
            return False
        self._module = noted.module
        self._entry.services.spent.more = self._module.paddle_entry_spent
        return True

    def leave(self) -> None:
        """Nothing is taken any more, and the counts go on here."""
        if self._module is not None:
            self.settle()
            self._counts = list(self.counts())
            self._module.paddle_entry_take()
            self._module = None

    def settle(self) -> None:
        """Something changed in what is armed, or in who listens: all that was learnt is forgotten."""
        if self._module is None:
            return
        entry, sink = self._entry, self._entry.sink
        with self._lock:
            if sink is None or entry.tick is not None:
                self._mode = _SLOW
            elif not entry.armed:
                self._mode = _UNARMED
            else:
                self._mode = _ARMED if getattr(sink, "patient", False) else _SLOW
            armed: Any = sink if self._mode == _ARMED else None
            if armed is not None:
                armed.told_later(self.runs)
                self._module.paddle_entry_mode(_ARMED, tuple(armed.asks), tuple(armed.zeros), armed.waiting, armed.cell)
            else:
                self._module.paddle_entry_mode(self._mode, (), (), None, None)

    # ---- numbers

    def counts(self) -> Sequence[int]:
        """Calls and iterations so far."""
        return self._module.paddle_entry_count(0) if self._module is not None else self._counts

    def next_number(self) -> int:
        return self._next(_CALL)

    def next_iteration(self) -> int:
        return self._next(_ITERATION)

    def _next(self, which: int) -> int:
        if self._module is not None:
            return int(self._module.paddle_entry_count(which)[which - 1])
        with self._lock:
            self._counts[which - 1] += 1
            return self._counts[which - 1]

    # ---- what Python decided

    @property
    def age(self) -> int:
        """Another one after each ``settle``."""
        age: int = self._module.paddle_entry_age() if self._module is not None else 0
        return age

    def learn(self, age: int, survey: Survey, watched: bool, file: str, line: int) -> None:
        """The call that begins is told in short: those like it may be, where nothing has changed since ``age``.
        ``watched``: with the extension looking for gradients that are not finite."""
        module = self._module
        if self._mode != _ARMED or module is None or survey.told is None or survey.kinds is None:
            return
        sink: Any = self._entry.sink
        by_names = sink.passes_over(survey.kinds, None, watched)
        module.paddle_entry_learn(age, *survey.told, not by_names, watched, survey.roots, file, line)

    def passing(self, by: int) -> None:
        """1: what begins on this thread only passes through, -1: no more; 0: whatever was said."""
        if self._module is not None:
            self._module.paddle_entry_pass(by)

    # ---- a call that runs

    def opened(self) -> Open | None:
        """The call that the extension began on this thread, once, as ours would have begun it; None where there is
        none."""
        module = self._module  # once: a detach on another thread takes it away
        told = module.paddle_entry_open() if module is not None else None
        if told is None:
            return None
        args, number, _, begin, frame, nodes, roots, place, watched = told
        opened = Open(frame, args, {}, False, number, "")
        if roots is not None:
            opened.frame = frame
            opened.brief = begin
            opened.facts = (nodes, roots, *place)
        noted = core()
        if watched and noted is not None:
            opened.watch = noted.watch
        return opened

    def tell(self, opened: Open) -> None:
        """Its begin, where it is told in short."""
        sink = self._entry.sink
        if sink is None or opened.facts is None:
            return
        nodes, roots, file, line = opened.facts
        ident = threading.get_ident()
        try:
            sink.brief_begin(BriefCall(opened.number, nodes, roots, "backward", self.counts()[1], ident, file, line))
        except own(Exception):  # nobody hears of it
            return

    def _found(self, address: int, outgoing: list[Any] | None, incoming: list[Any]) -> list[Any] | None:
        """See ``NativeWatch.start``."""
        opened, sink = self._entry.innermost(), self._entry.sink
        if opened is None or sink is None:
            return None
        return found(self._entry, sink, opened, address, outgoing, incoming)

    # ---- calls that ran

    def hand_over(self) -> None:
        """Something is about to be told: what waits comes before it."""
        gather: Callable[[], None] | None = getattr(self._entry.sink, "gather", None)
        if self._module is not None and gather is not None:
            gather()

    def runs(self) -> list[BriefRuns]:
        """Any thread."""
        if self._module is None:
            return []
        return [
            BriefRuns(BriefCall(number, nodes, roots, "backward", iteration, thread, *place), began, us)
            for number, nodes, roots, iteration, thread, place, began, us in self._module.paddle_entry_take()
        ]
