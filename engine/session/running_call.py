"""What the session knows of one running backward call. Touched by the thread that holds the turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall
from adbg.engine.graph.forward_origin import Leaves
from adbg.engine.session.stepping import Place
from adbg.engine.session.stop_point import CallState
from adbg.engine.types import Phase

Slots = tuple[Any, ...]


class Running:
    """A call between its begin and its end, and the calls around it (``chain``, outermost first, itself last)."""

    __slots__ = (
        "_edges", "_given", "_told", "_untold", "backend", "begun", "call", "chain", "collected", "family", "inner",
        "leaves",
        "may_hit", "received", "screened", "serial", "spoilt", "state", "thread",
    )  # fmt: skip

    def __init__(self, backend: Backend, call: BackwardCall, serial: int, outer: Running | None, now: int) -> None:
        self.backend = backend
        self.call = call
        self.state = CallState(call, started_ns=now)
        self.serial = serial
        self.chain: tuple[Running, ...] = (*outer.chain, self) if outer is not None else (self,)
        self.begun: dict[int, Visit] = {}  # nodes that run now, by key
        self.spoilt = self.state.spoilt
        # node -> what the calls that it ran passed on; where there was something
        self.inner: dict[int, list[dict[int, tuple[tuple[int, int], ...]]]] = {}
        self.family = tuple([each.call.number for each in self.chain])
        self.leaves = Leaves(backend, call)
        # key -> (NaN, infinite) elements that flowed into it; only of nodes that do not show what they give
        self.received: dict[int, tuple[int, int]] = {}
        # What came of these two, see ``given``: by node what it was given, and by consumer what it gave to which node.
        self._given: dict[int, tuple[int, int]] = {}
        self._told: dict[int, dict[int, tuple[int, int]]] = {}
        self._untold: set[int] = set()  # consumers of which that is to be brought up to date
        self._edges: dict[int, tuple[bool, tuple[int | None, ...]]] = {}  # see ``_below``
        self.collected = False  # its nodes are written down: observers are told by ``node_events``
        self.screened = False  # all its gradients are looked at since it began
        self.thread: int = self.chain[0].call.thread
        self.may_hit: Callable[[str], bool] | None = None  # breakpoints can take nodes of that name; None: any node

    def wait(self, ns: int) -> None:
        """Its thread waited so long, which is no work of its nodes: of this call, nor of those around it."""
        self.call.stood(ns)
        for running in self.chain:
            running.state.parked_ns += ns

    def spoil(self, key: int, counts: tuple[tuple[int, int], ...]) -> None:
        """Node ``key`` passes that many (NaN, infinite) elements on, per outgoing gradient."""
        if any(nan or inf for nan, inf in counts):
            if not self.spoilt and len(self.chain) > 1 and self.call.parent_key is not None:
                self.chain[-2].inner.setdefault(self.call.parent_key, []).append(self.spoilt)
            self.spoilt[key] = counts
        elif self.spoilt.pop(key, None) is None:
            return
        self._untold.add(key)

    def given(self, key: int) -> tuple[int, int]:
        """(NaN, infinite) elements that the consumers of ``key`` passed to it. Asked at every node from the first
        non-finite gradient on: what a node passed on is added up once, where it went (a backend may read edges natively
        each time)."""
        while self._untold:
            self._tell(self._untold.pop())
        return self._given.get(key, (0, 0))

    def _tell(self, consumer: int) -> None:
        """Bring up to date what ``consumer`` gave."""
        for to, (nan, inf) in self._told.pop(consumer, {}).items():
            self._give(to, -nan, -inf)
        counts, received = self.spoilt.get(consumer), self.received.get(consumer)
        told: dict[int, tuple[int, int]] = {}
        if counts is not None:
            hides, below = self._below(consumer)
            whole = sum(n for n, _ in counts), sum(i for _, i in counts)
            for place, behind in enumerate(below):
                if behind is not None and (hides or place < len(counts)):
                    nan, inf = told.get(behind, (0, 0))
                    more = whole if hides else counts[place]
                    told[behind] = nan + more[0], inf + more[1]
        elif received is not None:
            told = {behind: received for behind in self._below(consumer)[1] if behind is not None}
        for to, (nan, inf) in told.items():
            self._give(to, nan, inf)
        if told:
            self._told[consumer] = told

    def _give(self, key: int, nan: int, inf: int) -> None:
        before = self._given.get(key, (0, 0))
        self._given[key] = before[0] + nan, before[1] + inf

    def _below(self, key: int) -> tuple[bool, tuple[int | None, ...]]:
        """Whether what the node gives is not shown, and the node behind each of its edges."""
        found = self._edges.get(key)
        if found is None:
            call = self.call
            found = self._edges[key] = call.ends_unseen(key), tuple([edge.to for edge in call.edges(key)])
        return found

    def given_inside(self, key: int) -> tuple[int, int]:
        """(NaN, infinite) elements that passed through the calls which node ``key`` ran."""
        counts = [count for spoilt in self.inner.get(key, ()) for slots in spoilt.values() for count in slots]
        return sum(nan for nan, _ in counts), sum(inf for _, inf in counts)

    def given_from_outside(self, key: int) -> tuple[int, int]:
        """(NaN, infinite) elements that the node around this call was given, where ``key`` is a root of it."""
        outer, parent = self.chain[-2] if len(self.chain) > 1 else None, self.call.parent_key
        return outer.given(parent) if outer is not None and parent is not None and key in self.call.roots() else (0, 0)

    def receive(self, key: int, counts: tuple[int, int]) -> None:
        """That many (NaN, infinite) elements flow into node ``key``: kept where what it makes of them is not shown."""
        if any(counts) and self.call.ends_unseen(key):
            self.received[key] = counts
            self._untold.add(key)

    def place(self, phase: Phase, key: int | None = None) -> Place:
        """Where a thread stands that is at ``key`` of this call."""
        call = self.call
        outer = self.chain[-2] if len(self.chain) > 1 else None
        parent_key = call.parent_key if outer is not None else None
        return Place(
            phase,
            thread=self.thread,
            serial=self.serial,
            family=self.chain[0].serial,
            depth=call.depth,
            key=key,
            index=0 if key is None else self.state.index_of(key),
            parent_serial=outer.serial if outer is not None else 0,
            parent_key=parent_key,
            parent_index=outer.state.index_of(parent_key) if outer is not None and parent_key is not None else 0,
        )

    def enclosing(self) -> tuple[str, ...]:
        """Unique names of the nodes around this call, outermost first."""
        names = []
        for inner in self.chain[1:]:
            parent, key = inner.call.parent, inner.call.parent_key
            if parent is not None and key is not None:
                names.append(parent.describe(key).unique_name)
        return tuple(names)

    def states(self) -> list[CallState]:
        return [running.state for running in self.chain]


class Visit:
    """One hooked node, from its begin to its end.

    Never keep one, nor its gradients: a gradient that is kept alive changes what the framework may do in place, and
    with it the program's memory.

    Attributes:
        index: position in the execution order, from 1; 0 when the node is not in it.
        outs: incoming gradients (``grad_outputs``); empty while the node runs.
        ins: outgoing gradients (``grad_inputs``), from ``node_leave`` on.
        us: microseconds that the node took, from ``node_end`` on; None when its begin was not seen.
        norm: of the first defined incoming gradient; None when it has none.
        nonfinite: some element of that gradient is NaN or infinite.
        started_ns: when the node began, less the time that its thread stood at stops before.
    """

    __slots__ = ("index", "ins", "key", "nonfinite", "norm", "outs", "running", "started_ns", "us")

    def __init__(
        self, running: Running, key: int, index: int, outs: Slots, norm: float | None, nonfinite: bool
    ) -> None:
        self.running = running
        self.key = key
        self.index = index
        self.outs = outs
        self.norm = norm
        self.nonfinite = nonfinite
        self.ins: Slots | None = None
        self.us: float | None = None
        self.started_ns = 0
