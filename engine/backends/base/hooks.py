"""A running backward: which nodes are hooked (``HookPlan``), and what is reported of it (``HookSink``).

A backend only *reports* (through ``HookSink``) and *answers*. It never decides to stop: the session does. What a
framework cannot do is a ``Capabilities`` flag that is off and an ``Unsupported`` that says why, never a silent no-op.

Life of a call, all on the thread that runs backward:

    call = BackwardCall(...)                # the backend's wrapper around the framework's entry point
    sink.backward_begin(call)               # the session may call call.hook(plan), read call.order(), park
    ... sink.node_begin / node_end ...      # only for the nodes that the plan selected; the session may park and
                                            # call call.hook(wider plan) there: it holds for the nodes still to come
    sink.backward_end(call, error)          # hooks are still there, the graph is alive; then every hook is removed

Cost contract: while ``arm(False)`` the wrapper passes straight through (one attribute test, an increment, a try).
"""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adbg.engine.backends.base.graph import Graph
from adbg.engine.node_batch import NodeBatch
from adbg.engine.types import BriefCall, BriefRuns, NodeInfo, SourceLine


@dataclass(frozen=True, slots=True)
class HookPlan:
    """Which nodes of a call to hook. A node is hooked when any of the clauses takes it.

    ``name`` is asked once per distinct framework name in the graph (the backend caches it: one dict lookup a node);
    ``info`` is asked for every node not taken yet, with a ``NodeInfo`` that has at least the fields in ``needs``
    ("unique_name", "module", "parameter", "forward_stack"): the slow path, only for specs that need it.
    ``forward_stack`` is handed as a tuple of SourceLine, innermost first. ``by_place``: its answer depends on the name,
    the module, the parameter and the forward stack alone, so that one node answers for others made at its place.
    ``indices`` are positions in the execution order, from 1. ``every`` takes all.
    """

    every: bool = False
    name: Callable[[str], bool] | None = None
    info: Callable[[NodeInfo, Sequence[SourceLine]], bool] | None = None
    needs: frozenset[str] = frozenset()
    by_place: bool = False
    indices: frozenset[int] = frozenset()
    post: bool = True  # report node_end too
    contributions: bool = False  # keep the parts of summed gradients into nodes taken by name/info/indices/every
    screen: bool = False  # non-finite watch: see below

    # ``screen`` is the hot path of the nan/inf/nonfinite breakpoints: the backend hooks whatever it must so that every
    # gradient is looked at (outputs of every node; incoming ones at roots, where several consumers are summed, and
    # where the backend knows that they may be other ones than were passed on), screens with ``norm`` inside its own
    # hook, and calls the sink for a node taken by nothing else only when the norm is not finite.

    @property
    def empty(self) -> bool:
        return not (self.every or self.name or self.info or self.indices or self.screen)


@dataclass(frozen=True, slots=True)
class Part:
    """One consumer's contribution to slot ``slot`` of a node's incoming gradient."""

    slot: int
    from_key: int
    value: Any


class Hidden:
    """Stands in the place of a gradient that a framework does not show, where others of the same node are known. It is
    no tensor; ``meta`` of a backend takes it, and nothing can be put in its place."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<not known: {self.why}>"


class BackwardCall(Graph):
    """One running call of the framework's backward."""

    number: int  # 1, 2, ... over all calls, nested ones too, in order of beginning
    thread: int  # threading.get_ident() of the caller
    parent: BackwardCall | None  # the call whose node made this one
    parent_key: int | None  # that node in it
    depth: int  # 0 at top level
    entry: str  # "backward" or "grad"
    create_graph: bool
    root_names: tuple[str, ...]
    location: SourceLine | None  # the user's line that called backward
    #: Two calls with equal ones have nodes of the same names, made by the same stacks in the same modules, and the same
    #: leaves. None: the backend does not tell.
    alike: Hashable = None
    gave: Sequence[Any] = ()  # what a "grad" call returns, None for each that has no gradient: told while it ends
    since = 0  # ``perf_counter_ns`` of its begin, where it is reported later than that
    only_screened = False  # nodes are hooked for ``HookPlan.screen`` alone; False too where the backend does not tell

    @abc.abstractmethod
    def hook(self, plan: HookPlan) -> int:
        """Hook the nodes that the plan takes and that are not hooked yet; returns how many nodes are hooked now.
        May be called at begin, and again on the parked thread: then it acts on nodes still to run, and gives the
        current node a post hook."""

    @abc.abstractmethod
    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        """Parts of the summed gradients flowing into ``key`` as far as they were kept, and why some are missing."""

    def collect(self, norms: bool = True) -> bool:
        """Have written down of every node still to run when it began and ended, and the norm of what flowed into it
        (``norms``: False where the times alone are wanted), without a hook in Python: asked once, at the begin. False:
        the backend, or this call, has no way to."""
        return False

    def collected(self, start: int | None = None) -> NodeBatch | None:
        """What was written down since the last time; None where nothing is. On the call's thread, or on one parked
        inside it. With ``start``: what lies behind the first ``start`` of that, and stays; on any thread, while the
        nodes run; None before it was first asked for without."""
        return None

    def stood(self, ns: int) -> None:
        """This thread stood so long at a stop, or waited for one: no work of the node that runs, in what is written
        down."""

    def twin(self, shapes: bool) -> Hashable:
        """Of a call whose nodes are collected: equal for two whose graphs have the same nodes, stacks, edges and
        leaves. ``shapes``: behind its end, and those of the gradients too: all that can be told of the graph, row by
        row. None: it is not known."""
        return None

    def failed_nodes(self, error: BaseException) -> Sequence[tuple[int, str]]:
        """After an exception: (key, evidence) of the nodes that may have failed, most likely first. Works without any
        hook having been there."""
        return ()

    def flowed_in(self, key: int, error: BaseException) -> Sequence[Any] | None:
        """The ``grad_outputs`` with which node ``key`` failed, where the frames of the exception hold them (a Python
        backward); None: nothing holds them any more."""
        return None

    def original_error(self, error: BaseException) -> BaseException:
        """The exception as Python raised it, where the framework made another one of it (Paddle: an OSError)."""
        return error

    def error_text(self, error: BaseException) -> str:
        """Type and message of what went wrong, without what only pads it (C++ stacks, repeated Python ones)."""
        return f"{type(error).__name__}: {error}"


class HookSink(Protocol):
    """Implemented by the session. None of these may raise into the engine, save what the user asked for (kill)."""

    def backward_begin(self, call: BackwardCall) -> None: ...

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Before a node. A returned tuple replaces the gradients (already adopted: checked and cloned); None keeps
        them."""

    def node_end(
        self, call: BackwardCall, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]
    ) -> tuple[Any, ...] | None: ...

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None: ...

    # Instead of these, for a call that is not nested, where a backend knows the framework names of its nodes early:

    def passes_over(self, kinds: frozenset[str], alike: Hashable = None, watched: bool = False) -> bool:
        """Whether nothing can be of interest in a call whose nodes have these names. Asked at its begin, often: hand in
        the same set again for the same kinds; ``alike``: see ``BackwardCall``; ``watched``: the backend looks for
        gradients that are not finite itself, and hands the call over with ``backward_begin`` where it comes to one.
        True: ``brief_begin`` and ``brief_end`` tell of it, and nothing else; if it turns out later that it is looked
        into all the same (an exception, ``breakpoint()`` in a node), the methods above come too."""

    def brief_begin(self, call: BriefCall) -> None: ...

    def brief_end(self, number: int, us: float, error: BaseException | None) -> None: ...

    # Optional: all of ``LateSink``.
    # Optional: ``node_warning(call, key, grad_outputs, text)`` before a node of which the framework would die; it may
    # stop, and answers as ``node_begin`` does. It may come for a call whose begin was not reported (nothing armed).


class LateSink(Protocol):
    """What a sink has beside ``HookSink`` for a backend that can run calls without a word and tell of them later, where
    they would be told in short. ``Backend.arm`` follows whatever changes one of these answers.

    Attributes:
        patient: calls in short may be told later.
        cell: 24 writable bytes for number (u64), begin and end (f64, epoch; 0.0 while it runs) of such a call, or None.
        zeros: numbers one of which is not 0 where a call must be told at once.
        asks: functions one of which says True then.
    """

    @property
    def patient(self) -> bool: ...

    @property
    def cell(self) -> memoryview | None: ...

    @property
    def zeros(self) -> Sequence[ctypes.c_int32]: ...

    @property
    def asks(self) -> Sequence[Callable[[], bool]]: ...

    def keeps_nodes(self, call: BackwardCall, kinds: frozenset[str] | None) -> int:
        """Whether calls like this one, behind its end, may run without a word although every node is recorded, where
        the backend writes them down (``BriefRuns.nodes``): the number of the call whose graph is theirs. 0: no.
        ``kinds``: names of its nodes; None: not known."""

    def told_later(self, take: Callable[[], Iterable[BriefRuns]]) -> None:
        """``take``, on any thread, returns the calls that ran since the last time."""

    def waiting(self) -> None:
        """There are some to be taken, behind the first of them."""

    def gather(self) -> None:
        """Take them now: something else is about to be told."""


def ended_well(sink: HookSink, call: BackwardCall, result: Any) -> None:
    """Tell that it ended; what it gave (of ``grad``, a tuple or a list) is at hand meanwhile, and no longer: who keeps
    a gradient changes what the framework may do in place."""
    call.gave = result if isinstance(result, (tuple, list)) else ()
    try:
        sink.backward_end(call, None)
    finally:
        call.gave = ()
