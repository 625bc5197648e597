"""Observers: whatever listens to a run, and the one way in which the session tells it.

The front end's events, the record, the crash journal, the log and the captures are observers; the session knows none of
them. To add one, subclass ``Observer``, override what it wants to hear, and hand it to ``Session.observe``.

Cost contract: for each event there is one tuple of bound methods, of the active observers that override it, rebuilt
by ``Session.rearm``. An observer that is not active, or that does not override a method, costs nothing there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall, HookPlan
from adbg.engine.node_batch import NodeBatch
from adbg.engine.protocol.messages import BreakpointState
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import BriefCall, BriefRun, BriefRuns


class Observer:
    """Does nothing: override what is wanted.

    Methods named after a node or a call run on the autograd thread that holds the turn, between two nodes of a training
    job; the brief ones and ``before_backward`` on any thread. What they raise is reported once, never raised into the
    program, and ends the report to the observers behind this one: better raise nothing. Nothing is told while no client
    is attached, save ``backend_added`` and ``abandon``.
    """

    @property
    def active(self) -> bool:
        """False: notified of nothing but ``backend_added``, ``detach`` and ``abandon``. Asked by ``Session.rearm``:
        whoever changes it calls that (``Session.change``)."""
        return True

    @property
    def arms(self) -> bool:
        """Wants every backward call, also where no breakpoint does: without it calls may pass unreported."""
        return False

    #: It measures the time of nodes: while it is active nobody else is told of them, and no norm is taken, which would
    #: cost more than a small node.
    timing = False

    #: It writes something between two nodes: while it is active no node is told in batches.
    between = False

    @property
    def collects(self) -> bool:
        """False: not told ``node_events`` now. Asked by ``Session.rearm``, like ``active``."""
        return True

    #: What it hears of calls in short may come up to 0.25 s late and together, by ``brief_runs`` in place of
    #: ``brief_begin`` and ``brief_end``; ``before_backward`` is told of four calls a second then. Asked by ``rearm``.
    patient = False

    @property
    def zeros(self) -> Sequence[ctypes.c_int32] | None:
        """Numbers that are 0 while ``needs_calls`` answers False, and while nothing must be told at once although this
        observer is patient; as they are until ``rearm``. None: ``needs_calls`` must be asked."""
        return None

    #: 24 bytes for a crash report: number, begin and end of the call in short that runs (or of the last one).
    cell: memoryview | None = None

    # ---- a backward call

    def needs_calls(self) -> bool:
        """Asked, on any thread, at the begin of a call in which no breakpoint can be hit: True has it looked into."""
        return False

    def before_backward(self) -> None:
        """An outermost call begins, brief or not. An observer that is added here is notified of its begin."""

    def plan(self, running: Running) -> HookPlan | None:
        """What to hook in a call that begins, or that continues after a stop. A plan for both ends of every node
        ends the question: observers added later are not asked."""
        return None

    def backward_begin(self, running: Running) -> None: ...

    def release(self, running: Running, error: BaseException | None) -> None:
        """A call that was looked into is over: drop what is kept of it. Its end is told right after this, by
        ``backward_end``, or by ``brief_end`` where its begin was told by ``brief_begin`` alone."""

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None: ...

    def keeps(self, call: BackwardCall) -> int:
        """Of an observer that ``arms``, behind the end of a call: all that it wants of calls like this one are the rows
        of their nodes, later, by ``brief_runs``. It has their graph as that of the call with this number; 0: it must be
        told as ever."""
        return 0

    # ---- a call that is not looked into: none of its nodes is hooked

    def brief_begin(self, call: BriefCall) -> None: ...

    def looked_into(self, call: BriefCall) -> None:
        """Such a call is looked into all the same: an exception, or a stop in a node's own Python code."""

    def brief_end(self, run: BriefRun) -> None: ...

    def brief_runs(self, runs: BriefRuns) -> None:
        """Calls that ran, told later. Any thread."""

    def brief_waiting(self, gather: Callable[[], None], recorded: bool) -> None:
        """Such calls wait: ``gather`` has them told. Called behind the first of them, on its thread. ``recorded``: all
        their nodes are, and what waits is lost where the process is killed."""

    # ---- a hooked node, in this order; a stop may come behind node_begin and behind node_end

    def node_begin(self, visit: Visit) -> None: ...

    def node_enter(self, visit: Visit) -> None:
        """Right before the node runs."""

    def node_warned(self, visit: Visit) -> None:
        """The node is about to do what kills the process (Paddle dies of some undefined gradients); a stop may come
        behind. Told of nodes that nobody asked for too."""

    def node_leave(self, visit: Visit) -> None:
        """Right after the node ran. It is not measured yet."""

    def node_end(self, visit: Visit) -> None: ...

    def node_passed(self, visit: Visit) -> None:
        """Behind the stop, if there was one: ``ins`` are the gradients as they are passed on, edits included."""

    # ---- all nodes, in batches

    def node_events(self, running: Running, batch: NodeBatch) -> None:
        """Nodes of a call, hooked or not, that ran since the last batch: told at its end, in front of ``release`` of
        others, and when a thread stops. None is told where ``running.collected`` is False: the backend could not write
        them down, and ``plan`` may ask for hooks instead."""

    # ---- stops

    def before_stop(self) -> None:
        """A thread is about to stop. An observer that is added here is notified of the stop."""

    def stopped(self, point: PausedPoint, changed: Sequence[BreakpointState]) -> None:
        """A thread stops at ``point``; ``changed`` are the breakpoints that changed since the last stop."""

    def resumed(self, running: Running) -> None:
        """A thread that stopped in ``running`` continues, as it was asked to."""

    def continued(self, thread: int) -> None:
        """A stopped thread continues by itself: an exception (Ctrl-C) ended the stop."""

    def stop_over(self) -> None:
        """Whatever ended a stop, in a call or at a line: the last that its thread does for adbg there."""

    def trace(self, id: int, text: str, point: PausedPoint) -> None:
        """Tracepoint ``id`` was hit."""

    # ---- adbg's own work, and the life of the session

    def quiet(self, on: bool) -> None:
        """A hook has the turn (True) or is about to give it back: in between the thread does adbg's work."""

    def backend_added(self, backend: Backend) -> None:
        """A framework was imported; its hooks are installed if a client is attached."""

    def detach(self) -> None:
        """The client disconnected: drop what it asked for."""

    def abandon(self) -> None:
        """In a forked child: let go without waiting for a lock, whose holder may be a thread that is not here."""


_IN_SHORT = ("before_backward", "brief_begin", "brief_end")
_OF_NODES = frozenset(("node_begin", "node_enter", "node_leave", "node_end", "node_passed"))


class Notify:
    """For each event the bound methods to call, in the order in which the observers were added. Immutable."""

    needs_calls: tuple[Any, ...]
    before_backward: tuple[Any, ...]
    plan: tuple[Any, ...]
    backward_begin: tuple[Any, ...]
    release: tuple[Any, ...]
    backward_end: tuple[Any, ...]
    brief_begin: tuple[Any, ...]
    looked_into: tuple[Any, ...]
    brief_end: tuple[Any, ...]
    brief_runs: tuple[Any, ...]
    brief_waiting: tuple[Any, ...]
    node_begin: tuple[Any, ...]
    node_enter: tuple[Any, ...]
    node_warned: tuple[Any, ...]
    node_leave: tuple[Any, ...]
    node_end: tuple[Any, ...]
    node_passed: tuple[Any, ...]
    node_events: tuple[Any, ...]
    before_stop: tuple[Any, ...]
    stopped: tuple[Any, ...]
    resumed: tuple[Any, ...]
    continued: tuple[Any, ...]
    stop_over: tuple[Any, ...]
    trace: tuple[Any, ...]
    quiet: tuple[Any, ...]

    measures = True  # the norms of gradients are wanted
    patient = False  # calls in short may be told later

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        listening = [observer for observer in observers if observer.active]
        timing = [observer for observer in listening if observer.timing]
        self.measures = not timing
        for event in Notify.__annotations__:
            silent = getattr(Observer, event)
            heard = timing if timing and event in _OF_NODES else listening
            calls = (getattr(observer, event) for observer in heard if getattr(type(observer), event) is not silent)
            setattr(self, event, tuple(calls))
        zeros = [(each, each.zeros) for each in listening]
        self.zeros: tuple[ctypes.c_int32, ...] = tuple([zero for _, found in zeros for zero in found or ()])
        known = {each for each, found in zeros if found is not None}
        self.hurries: tuple[Any, ...] = tuple([asks for asks in self.needs_calls if asks.__self__ not in known])
        self.cells: tuple[memoryview, ...] = tuple([each.cell for each in listening if each.cell is not None])
        self.patient = all(
            each.patient or all(getattr(type(each), event) is getattr(Observer, event) for event in _IN_SHORT)
            for each in listening
        )
        self.keeps: tuple[Any, ...] = tuple([each.keeps for each in listening if each.arms])
        alone = timing or any(observer.between for observer in listening)
        wanted = [observer for observer in listening if observer.collects and not alone]
        self.node_events = tuple(
            [each.node_events for each in wanted if type(each).node_events is not Observer.node_events]
        )
