"""The captures of a session: what waits for its backward, what is being written, what is done.

``backward_begin``, ``node_passed`` and ``release`` run on autograd threads under the turn, ``now`` on the parked
thread, ``wait_for`` and the rest on any. Nothing here raises into a hook: a capture that fails is reported and dropped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall, CreationWatch, Graph, Hidden, HookPlan, Stray
from adbg.engine.capture.drawing import (
    Capture,
    CapturedEdge,
    backward_drawing,
    capture_of,
    forward_drawing,
    marks_text,
    size_text,
    variable_name,
)
from adbg.engine.capture.paddle_files import Folder, TensorFile, dot_text, stack_text
from adbg.engine.capture.svg import svg_text
from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.graph.region import Region, Selection, mark, parse_region, select
from adbg.engine.outside import own, suppress
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.parking import Parked
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.session import Session
from adbg.engine.types import Phase

MOST_WAITING = 100
_NO_WATCH = "ops without a part in the loss are known only to a capture that is set before the forward runs"


@dataclass(slots=True)
class Wanted:
    """One capture, from its wish to its end."""

    name: str
    region: Region
    directory: str
    grads: bool = False
    limit: int = 0  # bytes of gradients
    watches: list[CreationWatch] = field(default_factory=list)  # of ops without a part in the loss
    state: str = "waiting"
    files: list[str] = field(default_factory=list)
    selection: Selection | None = None
    capture: Capture | None = None
    strays: int = 0
    message: str = ""
    notes: list[str] = field(default_factory=list)  # why such ops are not known
    quiet: bool = False  # a script's own: only what went wrong is said
    told: p.CaptureState | None = None  # the last report: of what is over nothing else is kept

    def report(self) -> p.CaptureState:
        if self.told is not None:
            return self.told
        found, capture = self.selection, self.capture
        return p.CaptureState(
            self.name,
            self.region.text,
            self.state,
            list(self.files),
            found.count("inside") if found else 0,
            found.count("boundary") if found else 0,
            found.count("leaf") if found else 0,
            self.strays,
            len(capture.edges) if capture else 0,
            capture.nbytes if capture else 0,
            capture.unknown if capture else 0,
            self.message,
        )

    def over(self) -> None:
        """The graph is let go of: a script may capture at every step."""
        self.told = self.report()
        self.selection = self.capture = None

    def release(self) -> None:
        for watch in self.watches:
            watch.release()
        self.watches.clear()


class _Writing:
    """A capture whose gradients are being written: by key of the node that gives them, the edges they go along."""

    def __init__(self, wanted: Wanted, file: TensorFile, running: Running, capture: Capture) -> None:
        self.wanted = wanted
        self.file = file
        self.running = running
        self.edges: dict[int, list[CapturedEdge]] = {}
        self.nodes = {node.key: node for node in capture.nodes}
        for edge in capture.edges:
            self.edges.setdefault(edge.edge.consumer, []).append(edge)

    def plan(self) -> HookPlan:
        index = self.running.state.index_of
        return HookPlan(indices=frozenset(index(key) for key in self.edges))

    def node_passed(self, backend: Backend, key: int, grad_inputs: Sequence[Any]) -> None:
        for edge in self.edges.pop(key, ()):
            slot = edge.edge.slot
            value = grad_inputs[slot] if slot < len(grad_inputs) else None
            name = edge.variable
            if edge.meta is None and value is not None and not isinstance(value, Hidden):
                producer = self.nodes[edge.edge.producer]
                name = variable_name(producer, edge.edge.to_slot, backend.meta(value), edge.several)
            self.file.variable(name, value)

    def finish(self, remark: str) -> None:
        if remark:
            self.file.remark(remark)
        self.file.close()


class Captures(Observer):
    """All captures of ``session``. ``base``: where captures without a directory go."""

    def __init__(self, session: Session, base: Callable[[], str]) -> None:
        self._session = session
        self._base = base
        self._waiting: list[Wanted] = []
        self._writing: dict[int, list[_Writing]] = {}  # by id of the call
        self._over: list[Wanted] = []
        self._count = 0
        self._lock = threading.Lock()

    @property
    def active(self) -> bool:
        return bool(self._waiting or self._writing)

    @property
    def arms(self) -> bool:
        return self.active

    # ------------------------------------------------------------ asked for

    def wanted(self, request: p.Capture) -> Wanted:
        """Raises CommandError: a bad region or name."""
        region = parse_region(request.region)
        return self.make(region, request.directory or self._base(), request.name, request.grads, request.limit, True)

    def make(self, region: Region, directory: str, name: str, grads: bool, limit: int, folder: bool = False) -> Wanted:
        """``folder``: a folder of the capture's name in ``directory``, also where the name is ours."""
        if name and (os.sep in name or name in (".", "..") or not name.isprintable()):
            raise CommandError(f"{name!r} cannot name a capture", "use letters, digits, - and _")
        self._count += 1
        rank = f"-r{self._session.rank}" if self._session.rank else ""
        shown = name or f"capture-{self._count}"
        place = os.path.join(directory, f"{shown}{rank}") if folder or name else directory
        return Wanted(shown, region, place, grads, limit)

    def wait_for(self, wanted: Wanted) -> p.CaptureState:
        """Have it written by the next backward that has such nodes. Raises CommandError."""
        if wanted.grads and not wanted.limit:
            raise CommandError(
                "there is no graph yet, so the size of the gradients cannot be estimated",
                "give a limit: capture FILE:A-B grads=1GB (what exceeds it is left out)",
            )
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                raise CommandError(f"{MOST_WAITING} captures wait for a backward", "capture off drops them")
            self._watch(wanted)
            self._waiting = [*self._waiting, wanted]
        wanted.message = "waiting for a backward with nodes of these lines"
        self._session.rearm()
        return wanted.report()

    def _watch(self, wanted: Wanted) -> None:
        if wanted.region.made is not None:
            wanted.watches.append(wanted.region.made)
            return
        for backend in self._session.backends:
            self._follow(wanted, backend)

    @staticmethod
    def _follow(wanted: Wanted, backend: Backend) -> None:
        try:
            wanted.watches.append(backend.watch_creation())
        except AdbgError as error:
            wanted.notes.append(f"ops without a part in the loss are not known: {error.message}")

    def backend_added(self, backend: Backend) -> None:
        """What waits follows the nodes of this framework too."""
        for wanted in list(self._waiting):
            if wanted.region.made is None:
                self._follow(wanted, backend)

    def now(self, wanted: Wanted, graphs: Sequence[tuple[Graph, Running | None]], backend: Backend) -> p.CaptureState:
        """At a stop: write what one of ``graphs`` has of the region; wait for a later backward when none has.

        ``Running`` is None where no backward runs, or where it is over. Raises CommandError.
        """
        found = ((place, select(place[0], wanted.region)) for place in graphs)
        here = next(((place, selection) for place, selection in found if selection.inside), None)
        if here is None:
            return self.wait_for(wanted)
        (graph, running), selection = here
        wanted.selection, wanted.capture = selection, capture_of(graph, selection)
        mark(graph, selection)
        if wanted.grads and running is None:
            raise CommandError(
                "no backward is running on this graph, so no gradient can be captured",
                "capture it without grads, or stop in the backward",
            )
        if wanted.grads and not wanted.limit:
            wanted.state = "asking"
            wanted.message = self._estimate(wanted.capture)
            return wanted.report()
        self._write(wanted, graph, backend, running)
        return wanted.report()

    @staticmethod
    def _estimate(capture: Capture) -> str:
        unknown = f", {capture.unknown} of them of unknown size" if capture.unknown else ""
        return (
            f"{len(capture.edges)} gradients{unknown}: about {size_text(capture.nbytes)}, "
            f"some {size_text(capture.nbytes * 5 // 2)} as text"
        )

    def listing(self) -> list[p.CaptureState]:
        with self._lock:
            running = [w.wanted for all in self._writing.values() for w in all]
            return [w.report() for w in (*self._over, *running, *self._waiting)]

    def cancel(self, name: str = "") -> list[p.CaptureState]:
        """Drop those that wait (the one called ``name``). Raises CommandError: there is none of that name."""
        with self._lock:
            gone = [w for w in self._waiting if not name or w.name == name]
            if name and not gone:
                raise CommandError(f"no capture called {name!r} waits", "capture lists them")
            self._waiting = [w for w in self._waiting if w not in gone]
        for wanted in gone:
            wanted.release()
            wanted.state, wanted.message = "cancelled", "cancelled"
        self._session.rearm()
        return [w.report() for w in gone]

    def detach(self) -> None:
        """Nothing waits any more; files being written are ended as they are."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            writing, self._writing = self._writing, {}
        for wanted in waiting:
            wanted.release()
        for active in (active for all in writing.values() for active in all):
            self._finish(active, "the front end disconnected here: what came later is not in this file")

    # ------------------------------------------------------------ in a backward

    def backward_begin(self, running: Running) -> None:
        """Write those that waited for this one."""
        for wanted in list(self._waiting):
            try:
                selection = select(running.call, wanted.region)
                if not selection.inside:
                    continue
                with self._lock:
                    self._waiting = [w for w in self._waiting if w is not wanted]
                wanted.selection, wanted.capture = selection, capture_of(running.call, selection)
                mark(running.call, selection)
                self._write(wanted, running.call, running.backend, running)
            except own(Exception) as error:
                self._failed(wanted, error)
            else:
                self._announce(wanted)

    def node_passed(self, visit: Visit) -> None:
        running = visit.running
        for active in list(self._writing.get(id(running.call), ())):
            if visit.key in active.edges:
                try:
                    active.node_passed(running.backend, visit.key, visit.ins or ())
                except own(Exception) as error:
                    self._writing[id(running.call)].remove(active)
                    with suppress(OSError, ValueError):
                        active.file.close()
                    self._failed(active.wanted, error)

    def release(self, running: Running, error: BaseException | None) -> None:
        for active in self._writing.pop(id(running.call), ()):
            remark = ""
            if error is not None:
                remark = f"the backward failed here: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            elif active.edges:
                left = sum(map(len, active.edges.values()))
                remark = f"{left} gradients did not pass: their nodes did not run, or ran before the capture began"
            self._finish(active, remark)
            self._announce(active.wanted)
        if running.call.depth == 0:
            for wanted in list(self._waiting):
                if wanted.region.made is None:
                    for watch in wanted.watches:
                        watch.restart()
        if not self.active:
            self._session.rearm()

    # ------------------------------------------------------------ writing

    def _write(self, wanted: Wanted, graph: Graph, backend: Backend, running: Running | None) -> None:
        """Graphs, stacks and pictures now; gradients from now on. Raises CommandError."""
        capture = wanted.capture
        assert capture is not None and wanted.selection is not None
        wanted.message = ""
        strays, note = self._strays(wanted, graph)
        wanted.strays = len(strays)
        wanted.release()
        folder = Folder(wanted.directory)
        wanted.files = folder.files
        title = f"{wanted.region.text}: {marks_text(wanted.selection.marks.values())}"
        backward = backward_drawing(capture, f"backward of {title}")
        forward = forward_drawing(capture, f"forward of {title}", strays, note, backend.dump_dialect)
        keys = [node.key for node in reversed(capture.nodes)]
        folder.write("backward_graph.dot", dot_text(backward))
        folder.write("ref_forward_graph.dot", dot_text(forward))
        folder.write("backward_graph.svg", svg_text(backward))
        folder.write("ref_forward_graph.svg", svg_text(forward))
        folder.write("call_stack.log", stack_text(graph, keys, backend.dump_dialect))
        if not wanted.grads or running is None or not isinstance(graph, BackwardCall):
            wanted.state = "done"
            self._keep(wanted)
            return
        file = TensorFile(folder.open("grad_tensors.log"), backend, wanted.limit)
        active = _Writing(wanted, file, running, capture)
        wanted.state = "running"
        wanted.message = "gradients are written as the backward reaches them"
        self._writing.setdefault(id(graph), []).append(active)
        running.call.hook(active.plan())
        self._session.rearm()

    def _strays(self, wanted: Wanted, graph: Graph) -> tuple[list[Stray], str]:
        if not wanted.watches:
            return [], "; ".join(wanted.notes) or _NO_WATCH
        strays: list[Stray] = []
        notes = list(wanted.notes)
        for watch in wanted.watches:
            watch.close()
            found, note = watch.strays(graph)
            region = wanted.region
            strays += [s for s in found if region.made is not None or any(map(region.has_line, s.stack))]
            notes.append(note)
        return strays, "; ".join(dict.fromkeys(filter(None, notes)))

    def _finish(self, active: _Writing, remark: str) -> None:
        wanted = active.wanted
        try:
            active.finish(remark)
        except own(OSError, ValueError) as error:
            self._failed(wanted, error)
            return
        file = active.file
        wanted.state, wanted.message = "done", remark
        if file.left_out:
            wanted.message = (
                f"{file.left_out} gradients exceed the limit of {size_text(wanted.limit)}: named without their numbers"
            )
        self._keep(wanted)

    def _keep(self, wanted: Wanted) -> None:
        wanted.over()
        with self._lock:
            self._over.append(wanted)
            del self._over[:-MOST_WAITING]

    def _failed(self, wanted: Wanted, error: Exception) -> None:
        wanted.release()
        wanted.state = "failed"
        wanted.message = str(error) if isinstance(error, AdbgError) else f"{type(error).__name__}: {error}"
        with self._lock:
            self._waiting = [w for w in self._waiting if w is not wanted]
        self._keep(wanted)
        self._session.problems.say(f"capture {wanted.name} of {wanted.region.text} failed: {wanted.message}\n")
        self._session.rearm()

    def _announce(self, wanted: Wanted) -> None:
        state = wanted.report()
        if wanted.quiet and not (state.state == "done" and state.message):
            return
        what = "gradients are being written" if state.state == "running" else f"{len(state.files)} files"
        more = f" ({state.message})" if state.state == "done" and state.message else ""
        self._session.problems.say(
            f"capture {wanted.name}: {state.inside} nodes of {state.region}, {what} in {wanted.directory}{more}\n"
        )


def capture_at(parked: Parked, captures: Captures, wanted: Wanted) -> p.CaptureState:
    """Capture at a stop, on its thread: in the current graph, else in the nearest enclosing backward. Raises
    CommandError."""
    point = parked.point
    if point.backend is None:
        return captures.wait_for(wanted)
    chain = list(parked.running.chain) if parked.running is not None else []
    over = point.stop.phase in (Phase.END, Phase.ERROR)
    graphs: list[tuple[Graph, Running | None]] = [
        (running.call, None if over and running is chain[-1] else running) for running in reversed(chain)
    ]
    if point.graph is not None and all(point.graph is not graph for graph, _ in graphs):
        graphs.insert(0, (point.graph, None))
    return captures.now(wanted, graphs, point.backend)
