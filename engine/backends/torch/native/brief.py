"""Backward calls numbered, and those passed over without Python that are just like one in which nothing was of
interest, from the same line of the program. On the threads that call backward.

What is left of a step's cost is the processor's: 105 us of Python a call between the operators of a step of 2.6 ms, 12
us when it is called again and again (tiny transformer). The extension decides such a call in C++.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from adbg.engine.backends.base import HookSink
from adbg.engine.backends.torch import private
from adbg.engine.types import BriefCall, BriefRuns

Begin = Callable[[tuple[Any, ...], dict[str, Any]], Any]
End = Callable[[Any, Any], None]


class Facts(NamedTuple):
    """What calls have in common that are just like one another."""

    nodes: int
    roots: tuple[str, ...]
    entry: str
    file: str
    line: int
    alike: Hashable = None
    watched: bool = False  # gradients that are not finite are looked for, in C++
    source: int = 0  # every node is written down in C++, and the record has their graph as that of this call

    def call(self, number: int, iteration: int, thread: int) -> BriefCall:
        return BriefCall(number, self.nodes, self.roots, self.entry, iteration, thread, self.file, self.line)


class Passed(Protocol):
    """A call that was passed over and is under way. ``facts`` is None where nobody looks at any call; ``begun``: what
    was made of it, once it was looked at all the same."""

    number: int
    iteration: int
    thread: int
    began: float  # epoch
    since: int  # perf_counter_ns
    grad_mode: bool
    facts: Facts | None
    begun: Any
    age: int
    events: Any  # what is written down of its nodes


class Calls:
    """``begin`` and ``end`` are what the entry's function calls: the Python functions that were given, but for calls
    that are passed over, whose ``begin`` returns a ``Passed``."""

    def __init__(self, module: Any, begin: Begin, end: End, late: Callable[[Passed, float], None]) -> None:
        """Args: module: the extension, or None. late: hears of the end of a ``Passed`` that must be told at once, with
        the microseconds it took."""
        self.begin, self.end = begin, end
        self.kind: type = type(None)  # of ``Passed``
        self._native: Any = None
        self._numbers, self._iterations = itertools.count(1), itertools.count(1)
        self._count = self._iteration = 0
        self.records = False  # calls may be under way whose nodes are written down without a word
        if module is not None:
            looking = (
                torch.Tensor,
                torch.nn.Parameter,
                private.task_id,
                private.grad_mode,
                private.dispatch_depth,
                private.function_depth,
                private.guards_tls,
            )
            self._native = module.BriefCalls(begin, end, late, looking)
            self.begin, self.end = self._native.begin, self._native.end
            self.kind = module.BriefCall

    @property
    def count(self) -> int:
        return self._count if self._native is None else self._native.count

    @property
    def iteration(self) -> int:
        return self._iteration if self._native is None else self._native.iteration

    @property
    def age(self) -> int:
        """Another one after each ``forbid``."""
        return 0 if self._native is None else self._native.age

    def next(self, outermost: bool) -> int:
        """The number of a call that is looked at, from 1."""
        if self._native is not None:
            number: int = self._native.next(outermost)
            return number
        self._count = next(self._numbers)
        if outermost:
            self._iteration = next(self._iterations)
        return self._count

    # ---- which are passed over

    def allow_all(self) -> None:
        """Nobody looks at any call."""
        if self._native is not None:
            self._native.allow_all()

    def listen(self, sink: HookSink) -> None:
        """Calls may be passed over that are like one for which Python said so (``allow``), where the sink is a
        ``LateSink`` and patient."""
        if self._native is not None and getattr(sink, "patient", False):
            late: Any = sink
            late.told_later(self._runs)
            self._native.listen(tuple(late.asks), tuple(late.zeros), late.waiting, late.cell)

    def gather(self, sink: HookSink) -> None:
        """Have told what ran without a word: something is told that comes after it."""
        gather = getattr(sink, "gather", None)
        if self._native is not None and gather is not None:
            gather()

    def allow(
        self,
        age: int,
        entry: types.CodeType,
        user: types.CodeType,
        survey: Any,
        facts: Facts,
        nodes: tuple[int, int, int, bytes] | None = None,
    ) -> None:
        """Pass over calls whose graph has this ``survey`` (nodes, types and two more: ``Core.survey``), made by the
        same lines from ``entry``'s, which runs now, out to one of ``user``. Not where something was forbidden since
        ``age``. ``nodes``: have every node written down, see ``Written.graph``."""
        self.records = self.records or nodes is not None
        accumulate = facts.entry == "backward"
        self._native.allow(age, entry, user, accumulate, facts.watched, survey, facts, nodes)

    def forbid(self) -> None:
        """Every call is looked at."""
        if self._native is not None:
            self._native.forbid()

    def aside(self, change: int) -> None:
        """adbg itself runs a backward (1), or is done (-1)."""
        if self._native is not None:
            self._native.aside += change

    def _runs(self) -> Sequence[BriefRuns]:
        """Those that ran since the last time, in order."""
        runs: list[tuple[BriefCall, Facts, list[float], list[float], list[bytes]]] = []
        for number, iteration, thread, began, us, facts, rows in self._native.take():
            nodes = [] if rows is None else [rows]
            if runs:
                first, of, begins, times, nodes_of = runs[-1]
                ahead = number - first.number
                if of is facts and first.thread == thread and ahead == len(times) == iteration - first.iteration:
                    begins.append(began)
                    times.append(us)
                    nodes_of += nodes
                    continue
            runs.append((facts.call(number, iteration, thread), facts, [began], [us], nodes))
        return [
            BriefRuns(first, tuple(begins), tuple(times), tuple(nodes), of.source)
            for first, of, begins, times, nodes in runs
        ]

    def abandon(self) -> None:
        """In a forked child: those that ran are the parent's to tell."""
        if self._native is not None:
            self._native.forbid()
            self._native.take()

    # ---- graphs that are used up

    def used_up(self, thread: int) -> int | None:
        """The highest number of a root whose backward was passed over and retained nothing."""
        return None if self._native is None else self._native.last(thread)
