"""What happens in the program, told to the front end. Called under the turn, the brief calls on any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from adbg.engine.agent.connection import PAUSE, Connection
from adbg.engine.agent.event_queue import EventQueue
from adbg.engine.node_batch import NodeBatch, NodeRow
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.post_mortem import error_text
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import BriefCall, BriefRun, BriefRuns, StopReason

CALM = 0.25  # seconds: so late calls may be told that a backend ran without a word
# The same where all their nodes are recorded, and what waits is lost if the process is killed. Every 50 ms, and call by
# call (``Recorder.briefs``), the threads that write and send took 66 and 49 us of CPU a step of the bench's tiny
# transformer; so they take 38 and 23.
RECORDED = 0.2
FIRST = 100  # calls of a process that are told at once: it may be killed behind any of them
MOST_ROWS = 20_000  # of a call whose nodes were written down, 50 bytes each on the wire
LONG = 20_000.0  # us: the begin of calls that take that long is told at once
_DAP_REASON = {StopReason.ERROR: "exception", StopReason.NAN: "exception", StopReason.INF: "exception"}


class Client(Protocol):
    """Where events go. Nothing here may raise, nor block but for ``Connection.await_writer``, 0.2 s in all."""

    @property
    def connection(self) -> Connection | None: ...

    def event(self, body: Any, droppable: bool = False) -> None: ...

    def event_later(self, gather: Callable[[], Callable[[], Sequence[Any]]], calm: float = 0.0) -> None: ...


class Events(Observer):
    """The front end's events. What comes often waits in a queue for the next batch; a stop is sent at once, behind what
    waits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue = EventQueue()
        self._told: set[int] = set()  # brief calls that run and whose begin was told
        self._long = False  # the last one took long
        self._live: dict[Running, int] = {}  # calls in which the program stopped -> rows told since it went on
        self._gather: tuple[Callable[[], None], ...] = ()  # by backend: has it tell what waits there

    # ---- calls that are not looked into

    def brief_begin(self, call: BriefCall) -> None:
        """Told together with its end; at once where they take long (somebody may be waiting), and the first ones."""
        if call.number <= FIRST:
            self._told.add(call.number)
            self._tell_now(call)
        elif self._long:
            self.looked_into(call)

    def looked_into(self, call: BriefCall) -> None:
        if call.number not in self._told:
            self._told.add(call.number)
            self._later(call)

    def brief_end(self, run: BriefRun) -> None:
        self._long = run.us > LONG
        number = run.call.number
        if number in self._told:
            self._told.discard(number)
            run = run._replace(told=True)
        if number <= FIRST:
            self._tell_now(run)
            return
        self._queue.add(run)
        self._client.event_later(self._gathered, PAUSE)

    patient = True

    def brief_runs(self, runs: BriefRuns) -> None:
        self._queue.add(runs)

    def brief_waiting(self, gather: Callable[[], None], recorded: bool) -> None:
        if gather not in self._gather:
            self._gather = (*self._gather, gather)
        self._client.event_later(self._gathered, RECORDED if recorded else CALM)

    def _gathered(self) -> Callable[[], Sequence[Any]]:
        """What takes the events that wait, in the order in which the front end is to hear of them (``in_order``)."""
        self._queued()
        meanwhile = list(self._ran_meanwhile())
        return lambda: [*self._queue.take(), *meanwhile]

    def _queued(self) -> Callable[[], Sequence[Any]]:
        """The same without nodes that ran meanwhile, which one thread at a time may look for: the writer."""
        for gather in self._gather:
            gather()
        return self._queue.take

    def _ran_meanwhile(self) -> Iterator[p.NodesRan]:
        """What ran in calls that were looked at and went on, four times a second while they run; the last node alone
        where they are many."""
        for running, told in list(self._live.items()):
            try:
                batch = running.call.collected(told)
            except own(Exception):  # it was released meanwhile
                batch = None
            if batch is None or running not in self._live:
                self._live.pop(running, None)
                continue
            if len(batch):
                self._live[running] = told = told + len(batch)
                rows = [_ran(each) for each in islice(batch, 0 if told <= MOST_ROWS else len(batch) - 1, None)]
                yield p.NodesRan(running.call.number, rows)
            self._client.event_later(self._gathered, CALM)

    # ---- calls and nodes

    def backward_begin(self, running: Running) -> None:
        call = running.call
        if call.number in self._told:
            self._told.discard(call.number)
            return
        file, line = (call.location.file, call.location.line) if call.location else ("", 0)
        iteration = running.backend.iteration
        self._later(
            p.BackwardBegin(
                call.number,
                call.count(),
                list(call.root_names),
                call.depth,
                file,
                line,
                iteration,
                call.thread,
                call.truncated,
            )
        )

    def node_end(self, visit: Visit) -> None:
        queue = self._queue
        queue.node(visit.running.call.number, visit.index, visit.us, visit.norm, visit.nonfinite)
        self._client.event_later(self._gathered)

    def node_events(self, running: Running, batch: NodeBatch) -> None:
        """The rest of a call in which a thread stopped, whose graph somebody may be looking at; what ran before a
        stop is asked for there."""
        state = running.state
        if state.looked_at and not state.stopped_ns:
            self._live.pop(running, None)
            nodes = [_ran(each) for each in islice(batch, MOST_ROWS)]
            self._later(p.NodesRan(running.call.number, nodes))

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        self._live.pop(running, None)
        call = running.call
        tell = self._tell_now if call.number <= FIRST else self._later
        tell(p.BackwardEnd(call.number, us, error_text(error), call.depth))

    # ---- stops

    def stopped(self, point: PausedPoint, changed: Sequence[p.BreakpointState]) -> None:
        stop = point.stop
        self._live.clear()
        self.flush()
        for state in changed:
            self._client.event(p.BreakpointChanged("changed", state))
        where = stop.node.unique_name if stop.node else stop.phase.value
        reason = _DAP_REASON.get(stop.reason, stop.reason.value)
        text = f"{stop.reason.value} {stop.phase.value} {where}"
        self._client.event(p.Stopped(reason, stop.thread, True, text, stop.message, list(stop.breakpoints), stop))

    def resumed(self, running: Running) -> None:
        self._live = {each: 0 for each in running.chain if each.collected}
        if self._live:
            self._client.event_later(self._gathered, CALM)

    def continued(self, thread: int) -> None:
        """A request that makes the program continue is answered instead."""
        self._client.event(p.Continued(thread))

    def trace(self, id: int, text: str, point: PausedPoint) -> None:
        self.flush()
        self._client.event(p.Trace(id, text, point.stop), droppable=True)

    def detach(self) -> None:
        """The ends of the brief calls that run now are not told."""
        self._told.clear()
        self._live = {}
        self._gather = ()

    # ---- the queue

    def _later(self, body: Any) -> None:
        self._queue.add(body)
        self._client.event_later(self._gathered)

    def _tell_now(self, body: Any) -> None:
        """A short program may end without a word behind this: ``os._exit``, the workers of a pool."""
        self._queue.add(body)
        self.flush(now=True)

    def flush(self, now: bool = False) -> None:
        """Hand on what waits for the next batch: something comes that must be told after it. ``now``: and send it,
        under one lock, so that the writer does not take it and then has to wait for its turn."""
        take = self._queued() if now else self._gathered()
        connection = self._client.connection
        if connection is None:
            take()
            return
        if now:
            connection.await_writer()
        with connection.in_order():
            for body in take():
                self._client.event(body, droppable=True)
            if now:
                connection.send_now()


def _ran(row: NodeRow) -> p.NodeRan:
    return p.NodeRan(row.index, row.us, row.norm, row.nonfinite)
