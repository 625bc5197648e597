"""What happens in the program, told to the front end, the VLOG narrator and the record (L4; called under the turn)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from adbg.engine.agent.event_queue import History
from adbg.engine.backends.base import Backend
from adbg.engine.graph.index import index_of as graph_index
from adbg.engine.log.levels import Verbosity
from adbg.engine.log.narrator import Narrator
from adbg.engine.protocol import messages as p
from adbg.engine.record.journal import Journal
from adbg.engine.record.recorder import Recorder
from adbg.engine.session.running_call import Running
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import BriefCall, BriefRun, Phase, StopReason

MOST_NODES = 20_000  # of one graph in the record: 0.2 s when the program goes on
PAGE = 1000
ACTIVE = 0.2  # seconds between two looks at what is known of the process only late: 9 us of a backward call's begin
FIRST = 100  # calls of a process whose begin is told at once
LONG = 20_000.0  # us: the begin of calls that take that long is told at once
_DAP_REASON = {StopReason.ERROR: "exception", StopReason.NAN: "exception", StopReason.INF: "exception"}


class Outlet(Protocol):
    """Where events go. Nothing here may block or raise."""

    def event(self, body: Any, droppable: bool = False) -> None: ...

    def event_later(self, make: Callable[[], Sequence[Any]]) -> None: ...

    def active(self) -> None:
        """An outermost backward call begins or a thread stops: what is known of the process only late is looked up."""


class Reports:
    """Three listeners behind one face. ``recorder`` may come and go."""

    def __init__(self, outlet: Outlet, recorder: Recorder | None, scratch: str = "") -> None:
        self.outlet = outlet
        self.recorder = recorder
        self.narrator = Narrator(self._log)
        self.verbosity = Verbosity(self.narrator, lambda: self.recorder, scratch, self.problem)
        self.journal: Journal | None = None
        self._logged = 0  # bytes of the framework's own log that have their place among the events
        self._history = History()
        self._problems: set[str] = set()
        self._brief: dict[int, BriefRun] = {}  # calls that nobody looks into, by number, till they end
        self._long = False  # the last one took long
        self._active_at = 0.0

    def _active(self) -> None:
        """An outermost call begins: the outlet hears of it, but not 3,000 times a second (a rank is learnt once)."""
        now = time.monotonic()
        if now >= self._active_at:
            self._active_at = now + ACTIVE
            self.outlet.active()

    def brief_begin(self, call: BriefCall) -> None:
        """A call that nobody looks into begins. On any thread, without the turn. It is told together with its end; at
        once where they take long (somebody may be waiting), and the first ones (a short program may end without a word:
        ``os._exit``, a pool's workers)."""
        self._active()
        at_once = self._long or call.number <= FIRST
        self._brief[call.number] = BriefRun(call, time.time(), at_once)
        if at_once:
            self._later(call)
        if self.journal is not None:
            self.journal.brief_begin(call.number)

    def forget_brief(self) -> None:
        """The client is gone: nobody hears of the ends of calls that run now."""
        self._brief.clear()

    def looked_into(self, number: int) -> None:
        """Somebody looks into a call all the same, where it was one that ``brief_begin`` told of."""
        run = self._brief.get(number)
        if run is not None and not run.told:
            self._brief[number] = run._replace(told=True)
            self._later(run.call)

    def brief_end(self, number: int, us: float, error: BaseException | None) -> None:
        """Such a call ends; nothing is told where ``backward_end`` did so, because somebody looked into it."""
        found = self._brief.pop(number, None)
        if found is not None:
            self._brief_ended(found, us, error)

    def _brief_ended(self, run: BriefRun, us: float, error: BaseException | None) -> None:
        self._long = us > LONG
        ended = BriefRun(run.call, run.began, run.told, us, _error_text(error))
        self._later(ended)
        if self.journal is not None:
            self.journal.brief_end()
        if self.recorder is not None:
            self.recorder.brief(ended)

    def backward_begin(self, running: Running) -> None:
        call = running.call
        brief = self._brief.pop(call.number, None)  # it is looked into all the same
        if call.depth == 0:
            self._active()
        nodes, iteration = call.count(), running.backend.iteration
        file, line = (call.location.file, call.location.line) if call.location else ("", 0)
        begin = p.BackwardBegin(
            call.number, nodes, list(call.root_names), call.depth, file, line, iteration, call.thread
        )
        if brief is None or not brief.told:
            self._later(begin)
        if self.verbosity.speaks_for(running.backend):
            self.narrator.backward_begin(call)
        if self.journal is not None:
            self.journal.put("begin", call.number)
        if self.recorder is not None:
            self.recorder.backward_begin(
                call.number,
                nodes=nodes,
                roots=call.root_names,
                entry=call.entry,
                depth=call.depth,
                parent=call.parent.number if call.parent is not None else 0,
                parent_index=running.place(Phase.BEGIN).parent_index,
                thread=call.thread,
                iteration=iteration,
                file=file,
                line=line,
                create_graph=call.create_graph,
            )

    def node_begin(
        self, running: Running, key: int, index: int, outs: tuple[Any, ...], norm: float | None, nonfinite: bool
    ) -> None:
        if self.verbosity.speaks_for(running.backend):
            self.narrator.node_begin(running.call, key, index, outs, running.backend)
        if self.journal is not None:
            self._note(running, key, index, outs, norm)
        self._place_log()
        if self.recorder is not None:
            self.recorder.node_event(running.call.number, index, "before", None, norm, nonfinite)

    def node_end(
        self,
        running: Running,
        key: int,
        index: int,
        ins: tuple[Any, ...],
        us: float | None,
        norm: float | None,
        nonfinite: bool,
    ) -> None:
        number = running.call.number
        self._history.node(number, index, us, norm, nonfinite)
        self.outlet.event_later(self._history.take)
        if self.verbosity.speaks_for(running.backend):
            self.narrator.node_end(running.call, key, index, ins, running.backend, us)
        if self.journal is not None:
            self.journal.put("after", number, index, running.call.name(key), running.call.depth, _path(running))
        self._place_log()
        if self.recorder is not None:
            self.recorder.node_event(number, index, "after", us, norm, nonfinite)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        call = running.call
        brief = self._brief.pop(call.number, None)
        if brief is not None:  # looked into, and nobody told its begin
            self._brief_ended(brief, us, error)
            return
        text = _error_text(error)
        self._later(p.BackwardEnd(call.number, us, text, call.depth))
        if self.verbosity.speaks_for(running.backend):
            self.narrator.backward_end(call, error)
        if self.journal is not None:
            self.journal.put("end", call.number)
        self._place_log()
        if self.recorder is not None:
            self.recorder.backward_end(call.number, us, text)

    def _later(self, body: Any) -> None:
        self._history.add(body)
        self.outlet.event_later(self._history.take)

    def flush(self) -> None:
        """Hand over what waits for the next batch of events: something comes that must be told after it."""
        for body in self._history.take():
            self.outlet.event(body, droppable=True)

    def graph(self, running: Running) -> None:
        """Write the call's graph into the record, once."""
        if self.recorder is None or not self.recorder.recording or running.noted:
            return
        running.noted = True
        call = running.call
        index = graph_index(call)
        for first in range(1, min(index.total, MOST_NODES) + 1, PAGE):
            rows = [index.row(call, i) for i in range(first, min(first + PAGE, index.total + 1))]
            stacks = {row.index: call.forward_stack(row.key)[0] for row in rows}
            self.recorder.graph(call.number, rows, stacks)

    def stopped(self, point: PausedPoint, changed: Sequence[p.BreakpointState]) -> None:
        self.outlet.active()
        stop = point.stop
        self.flush()
        for state in changed:
            self.outlet.event(p.BreakpointChanged("changed", state))
        where = stop.node.unique_name if stop.node else stop.phase.value
        reason = _DAP_REASON.get(stop.reason, stop.reason.value)
        text = f"{stop.reason.value} {stop.phase.value} {where}"
        self.outlet.event(p.Stopped(reason, stop.thread, True, text, stop.message, list(stop.breakpoints), stop))
        if self.recorder is not None:
            self.recorder.stop(stop)

    def continued(self, thread: int) -> None:
        """The program went on by itself (a request that makes it go on is answered instead)."""
        self.outlet.event(p.Continued(thread))

    def trace(self, id: int, text: str, point: PausedPoint) -> None:
        self.flush()
        self.outlet.event(p.Trace(id, text, point.stop), droppable=True)
        if self.recorder is not None:
            self.recorder.artifact("trace", str(id), f"bwd#{point.stop.backward} {text}")

    def _note(self, running: Running, key: int, index: int, values: Sequence[Any], norm: float | None) -> None:
        """A node begins: into the crash journal (9 us of a hooked node's time, its end included). ``norm`` of the first
        defined value, where it is known already."""
        journal = self.journal
        if journal is None:
            return
        backend, call = running.backend, running.call
        texts = []
        for value in values:
            if value is None:
                texts.append("undefined")
                continue
            try:
                meta = backend.meta(value)
                norm = backend.norm(value) if norm is None else norm
                shape = ", ".join(map(str, meta.shape or ()))
                texts.append(f"{meta.dtype}[{shape}] norm {norm:.4g}")
            except Exception:  # sparse, quantised: no figure, no harm
                texts.append("?")
            norm = None
        journal.put("before", call.number, index, call.name(key), call.depth, _path(running), *texts)

    def _place_log(self) -> None:
        """What the framework wrote itself until now gets its place among the events (1 us)."""
        tap = self.verbosity.tap
        if tap.on:
            size = tap.size
            if size > self._logged and self.recorder is not None:
                self.recorder.log_range(self._logged, size - self._logged)
            self._logged = size

    def problem(self, text: str) -> None:
        """One line for a person, once."""
        if text not in self._problems and len(self._problems) < 100:
            self._problems.add(text)
            self.outlet.event(p.Output(f"adbg: {text}\n", "important"))

    def defect(self, what: str, error: BaseException) -> None:
        """Something of adbg's own failed: the program goes on, the front end hears of each kind once."""
        text = f"adbg: {what}: {type(error).__name__}: {error}\n"
        if text not in self._problems and len(self._problems) < 100:
            self._problems.add(text)
            self.outlet.event(p.Output(text, "important"))

    def _log(self, record: str) -> None:
        if self.journal is not None:
            self.journal.log(record)
        if self.recorder is not None and self.recorder.recording:
            self.recorder.log(record)
        else:
            self.outlet.event(p.Output(record, "vlog"), droppable=True)


def _error_text(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else ""


def _path(running: Running) -> str:
    return " > ".join(running.enclosing()) if len(running.chain) > 1 else ""


def slot_text(backend: Backend, value: Any) -> str:
    """One gradient in one phrase: "[2, 4] f32 norm 0.02134", its norm in the four digits of the front end."""
    if value is None:
        return "undefined"
    meta = backend.meta(value)
    shape = "[" + ", ".join(map(str, meta.shape or ())) + "]"
    return f"{shape} {meta.dtype} norm {backend.norm(value):.4g}"


def slots_text(backend: Backend, name: str, values: Sequence[Any]) -> str:
    return ", ".join(f"{name}[{i}] {slot_text(backend, value)}" for i, value in enumerate(values))
