"""What the run directory keeps of a run: the record, and the crash journal.

Called under the turn, the brief calls on any thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import Backend, BackwardCall, HookPlan
from adbg.engine.graph.index import index_of
from adbg.engine.node_batch import NodeBatch
from adbg.engine.outside import own, suppress
from adbg.engine.protocol.messages import BreakpointState
from adbg.engine.record.files import LOSS
from adbg.engine.record.journal import Journal
from adbg.engine.session.observers import Observer
from adbg.engine.session.post_mortem import error_text
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import BriefCall, BriefRun, BriefRuns, Phase

if TYPE_CHECKING:
    from adbg.engine.record.recorder import Recorder  # with sqlite, where something is recorded

MOST_NODES = 20_000  # of one graph in the record: 0.2 s when the program continues
PAGE = 1000
MOST_TWINS = 256  # graphs that are told apart


class Recording(Observer):
    """Hands what happens to the recorder. ``every``: every node is asked for, and the graph of every call is kept."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._twins: dict[Hashable, int] = {}  # by ``BackwardCall.twin``, the call that has the rows
        # The first call with a graph has hooks, whose nodes the crash journal knows one by one; those like it are taken
        # in batches, ten times as fast.
        self._kin: set[Hashable] = set()
        self._batched: set[int] = set()  # calls under way that are
        self._graphs: set[int] = set()  # calls under way whose graph is recorded
        self.every = False

    @property
    def arms(self) -> bool:
        return self.every

    @property
    def collects(self) -> bool:
        return self.every

    def plan(self, running: Running) -> HookPlan | None:
        if not self.every:
            return None
        if running.collected and running.call.twin(shapes=False) in self._kin:
            self._batched.add(running.call.number)
            return None
        return HookPlan(every=True)

    def backward_begin(self, running: Running) -> None:
        call = running.call
        if self.every and call.number not in self._batched:
            call.read_all_stacks()  # the journal wants each node's line, the graph all of them at the end
        if self.every:
            self._note_loss(running)
        file, line = (call.location.file, call.location.line) if call.location else ("", 0)
        self._recorder.backward_begin(
            call.number,
            nodes=call.count(),
            roots=call.root_names,
            entry=call.entry,
            depth=call.depth,
            parent=call.parent.number if call.parent is not None else 0,
            parent_index=running.place(Phase.BEGIN).parent_index,
            thread=call.thread,
            iteration=running.backend.iteration,
            file=file,
            line=line,
            create_graph=call.create_graph,
            ago=(perf_counter_ns() - running.state.started_ns) / 1e9,
        )

    def _note_loss(self, running: Running) -> None:
        """A root that is not finite: the nodes alone do not tell that it was the forward. One norm a root."""
        backend, number = running.backend, running.call.number
        for value in running.call.root_values():
            with suppress(Exception):  # sparse, quantised: no figure
                if not math.isfinite(backend.norm(value)) and any(bad := backend.nonfinite(value)):
                    self._recorder.artifact(LOSS, str(number), json.dumps([*bad, backend.meta(value).numel]))
                    return

    def node_events(self, running: Running, batch: NodeBatch) -> None:
        if running.call.number in self._batched:
            self._recorder.node_events(running.call.number, batch.rows, batch.lost)

    def node_begin(self, visit: Visit) -> None:
        number = visit.running.call.number
        if number in self._batched:
            return
        self._recorder.node_event(number, visit.index, "before", None, visit.norm, visit.nonfinite)

    def node_end(self, visit: Visit) -> None:
        number = visit.running.call.number
        if number in self._batched:
            return
        self._recorder.node_event(number, visit.index, "after", visit.us, visit.norm, visit.nonfinite)

    def release(self, running: Running, error: BaseException | None) -> None:
        if self.every:
            self._record_graph(running, whole=error is None)
            kin = running.call.twin(shapes=False)
            if kin is not None and error is None:
                if len(self._kin) >= MOST_TWINS:
                    self._kin.clear()
                self._kin.add(kin)
        self._graphs.discard(running.call.number)
        self._batched.discard(running.call.number)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        self._recorder.backward_end(running.call.number, us, error_text(error))

    patient = True

    def brief_end(self, run: BriefRun) -> None:
        self._recorder.brief(run)

    def brief_runs(self, runs: BriefRuns) -> None:
        self._recorder.briefs(runs)

    def keeps(self, call: BackwardCall) -> int:
        twin = call.twin(shapes=True)
        return self._twins.get(twin, 0) if self.every and twin is not None and self._recorder.recording else 0

    def resumed(self, running: Running) -> None:
        self._record_graph(running, whole=False)

    def _as_before(self, running: Running) -> bool:
        """Whether the record has the graph already: a training script's are the same in each iteration, and one of 600
        nodes takes 60 ms to write."""
        twin = running.call.twin(shapes=True)
        if twin is None:
            return False
        number = running.call.number
        known = self._twins.get(twin)
        if known is not None and self._recorder.same_graph(number, known):
            return True
        if len(self._twins) >= MOST_TWINS:
            self._twins.clear()
        self._twins[twin] = number
        return False

    def _record_graph(self, running: Running, whole: bool) -> None:
        """Record the graph of a call in which the program stopped, once; ``whole``: it is over."""
        call = running.call
        if call.number in self._graphs or not self._recorder.recording:
            return
        self._graphs.add(call.number)
        if whole and self._as_before(running):
            return
        call.read_all_stacks()
        index = index_of(call)
        position: Any = index.position.get  # None for None
        for first in range(1, min(index.total, MOST_NODES) + 1, PAGE):
            rows = [index.row(call, i) for i in range(first, min(first + PAGE, index.total + 1))]
            stacks = {row.index: call.forward_stack(row.key)[0] for row in rows}
            edges = {
                row.index: [(edge.slot, position(edge.to), edge.to_slot) for edge in call.edges(row.key)]
                for row in rows
            }
            self._recorder.graph(call.number, rows, stacks, edges)

    def stopped(self, point: PausedPoint, changed: Sequence[BreakpointState]) -> None:
        self._recorder.stop(point.stop)

    def trace(self, id: int, text: str, point: PausedPoint) -> None:
        self._recorder.artifact("trace", str(id), f"bwd#{point.stop.backward} {text}")

    def detach(self) -> None:
        self.every = False
        for kept in (self._graphs, self._twins, self._kin, self._batched):
            kept.clear()


class CrashNotes(Observer):
    """Writes what happens into the crash journal. ``stacks``: whether nodes have forward stacks to be read."""

    def __init__(self, journal: Journal, stacks: Callable[[], bool]) -> None:
        self._journal = journal
        self._stacks = stacks

    patient = True

    @property
    def cell(self) -> memoryview | None:  # type: ignore[override]
        return self._journal.brief_cell

    def brief_begin(self, call: BriefCall) -> None:
        self._journal.brief_begin(call.number)

    def brief_end(self, run: BriefRun) -> None:
        self._journal.brief_end()

    def backward_begin(self, running: Running) -> None:
        self._journal.put("begin", running.call.number)

    def node_begin(self, visit: Visit) -> None:
        """9 us of a hooked node's time, its end included; where stacks are on, its line's 8 on Paddle, 28 on torch."""
        running = visit.running
        backend, call, norm = running.backend, running.call, visit.norm
        texts = []
        for value in visit.outs:
            if value is None:
                texts.append("undefined")
                continue
            try:
                meta = backend.meta(value)
                norm = backend.norm(value) if norm is None else norm
                shape = ", ".join(map(str, meta.shape or ()))
                texts.append(f"{meta.dtype}[{shape}] norm {norm:.4g}")
            except own(Exception):  # sparse, quantised: no figure, no harm
                texts.append("?")
            norm = None  # the one that is known was of the first defined gradient
        path, line = _path(running), self._line(running, visit.key)
        self._journal.put("before", call.number, visit.index, call.name(visit.key), call.depth, path, line, *texts)

    def node_warned(self, visit: Visit) -> None:
        self.node_begin(visit)

    def node_end(self, visit: Visit) -> None:
        running = visit.running
        call = running.call
        name = call.name(visit.key)
        line = self._line(running, visit.key)
        self._journal.put("after", call.number, visit.index, name, call.depth, _path(running), line)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        self._journal.put("end", running.call.number)

    def backend_added(self, backend: Backend) -> None:
        self._journal.watch_faults_again()

    def abandon(self) -> None:
        self._journal.abandon()

    def _line(self, running: Running, key: int) -> str:
        """The line of the forward that made the node; "" where it is not known."""
        if not self._stacks():
            return ""
        try:
            stack = running.call.forward_stack(key)[0]
        except own(Exception):  # a report may lack a line; a hook may not fail
            return ""
        return f"{stack[0].file}:{stack[0].line} in {stack[0].function}" if stack else ""


def _path(running: Running) -> str:
    return " > ".join(running.enclosing()) if len(running.chain) > 1 else ""
