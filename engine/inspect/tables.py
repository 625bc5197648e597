"""``adbg/info``: tables. Runs on the parked thread; while the program runs, those that need no stop on "adbg-reader".

Off the parked thread nothing may be asked of a gradient: a backward may replace or free it at that moment, without the
GIL. What is asked of a parameter there (its shape, dtype and device) does not change.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.errors import CommandError, NotStopped
from adbg.engine.graph.index import index_of, remember, seen
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.value_text import NORM_ELEMENTS, norm_of, one_line
from adbg.engine.outside import own
from adbg.engine.protocol.messages import InfoBody, ThreadState
from adbg.engine.python.user_code import live_frames, source_line
from adbg.engine.session.session import Session
from adbg.engine.types import SourceLine

_MEANING = {
    "pre_hooks": "stop before any node",
    "post_hooks": "stop after any node",
    "edit_grad_outputs": "change a gradient before its node",
    "edit_grad_inputs": "change a gradient after its node",
    "saved_tensors": "saved tensors by name",
    "forward_stacks": "the forward line that made a node",
    "module_paths": "the module that made a node",
    "nested_backward": "step into a backward run by a node",
    "execution_order": "the order of nodes before they run",
    "contributions": "parts of a summed gradient",
    "native_vlog": "the framework writes VLOG records itself",
}


def info(session: Session, what: str, stop: StopContext | None) -> InfoBody:
    """The table ``what``; ``stop`` is None while the program runs.

    Raises:
        NotStopped: the table needs a stop.
        CommandError: there is no such table.
    """
    what = what.strip()
    if what in _AT_STOP:
        if stop is None:
            raise NotStopped(f"`info {what}` needs a stop", "`pause` stops the program at the next node")
        return _AT_STOP[what](stop)
    if what not in _ANY_TIME:
        raise CommandError(f"unknown table {what!r}", "info " + " | ".join([*_AT_STOP, *_ANY_TIME]))
    return _ANY_TIME[what](session, stop)


def _backward(stop: StopContext) -> InfoBody:
    """The backward calls around this stop, outermost first."""
    point = stop.point
    rows = []
    for state in point.calls:
        call = state.call
        ms = round(state.ran_ns(time.perf_counter_ns()) / 1e6, 3) if state.started_ns else None
        rows.append(
            [
                call.number, call.depth, call.entry, f"{state.position}/{call.count()}", ", ".join(call.root_names),
                _place(call.location), ms, call.create_graph,
            ]
        )  # fmt: skip
    if rows:
        at = point.stop
        text = f"backward {at.backward}, iteration {at.iteration}, stopped: {at.reason.value} {at.phase.value}"
    else:
        text = "no backward runs here"
    if point.error is not None:
        text += f"; {type(point.error).__name__}: {one_line(str(point.error))}"
    columns = ["backward", "depth", "entry", "position", "roots", "called at", "ms run", "create_graph"]
    return InfoBody(text, columns, rows)


def _place(line: SourceLine | None) -> str:
    return f"{line.file}:{line.line}" if line is not None else ""


def _names(session: Session, stop: StopContext | None) -> InfoBody:
    """What a breakpoint spec may name: framework names, modules, parameters, forward lines. First those of the current
    graph, then those seen at earlier stops, then those that breakpoints were compared with.
    """
    found: dict[tuple[str, str], int] = {}
    if stop is not None and stop.point.graph is not None:
        graph = stop.point.graph
        index = index_of(graph)
        found = {("name", name): len(keys) for name, keys in index.names(graph).items()}
        found.update(index.places(graph))
        remember((kind, name, count) for (kind, name), count in found.items())
    for kind, name, count in seen():
        found.setdefault((kind, name), count)
    for name in sorted(session.table.names_seen):
        found.setdefault(("name", name), 0)
    where = "in this graph and seen before" if stop is not None else "seen so far"
    text = f"{len(found)} names {where}" if found else "no graph was inspected yet"
    return InfoBody(text, ["name", "nodes", "kind"], [[name, count, kind] for (kind, name), count in found.items()])


def thread_states(session: Session) -> list[ThreadState]:
    """Threads that run Python, without adbg's own; a thread that the framework made counts while it is in a hook."""
    names = {t.ident: t.name for t in threading.enumerate() if t.ident is not None}
    parked = session.parked
    stopped = parked.thread if parked is not None else 0
    waiting = set(session.turn.waiting)
    states = []
    for ident in sys._current_frames():
        name = names.get(ident, f"thread {ident}")
        if not name.startswith("adbg-"):
            state = "stopped" if ident == stopped else "waiting" if ident in waiting else "running"
            states.append(ThreadState(ident, name, state))
    return sorted(states, key=lambda state: (state.adbg != "stopped", state.name != "MainThread", state.name))


def _threads(session: Session, _stop: StopContext | None) -> InfoBody:
    frames = sys._current_frames()
    rows: list[list[object]] = []
    for state in thread_states(session):
        live = live_frames(frames.get(state.id))
        line = source_line(live[0]) if live else None
        where = f"{line.function} {_place(line)}" if line is not None else ""
        rows.append([state.id, state.name, state.adbg, where])
    return InfoBody(f"{len(rows)} thread{'s' * (len(rows) != 1)}", ["id", "name", "state", "at"], rows)


def _params(session: Session, stop: StopContext | None) -> InfoBody:
    """Parameters of the modules seen so far; at a stop with their gradients, and with those that are looked for: leaves
    of the graph that are in no module, what an optimizer holds beside them, parameters that no optimizer has."""
    columns = ["name", "shape", "dtype", "device", "grad norm", "grad", "requires_grad"]
    rows: list[list[object]] = []
    missing = registered = strangers = 0
    for backend in session.backends:
        known = named_parameters(backend)
        registered += len(known)
        if stop is None:
            for name, value in known:
                row = _param_row(backend, name, value, None)
                rows.append([*row[:4], None, None, row[6]])
            continue
        held = {id(value): (place, value) for place, value in backend.optimized()}
        named = {id(value) for _, value in known}
        for name, value in known:
            note = "in no optimizer" if held and id(value) not in held else ""
            rows.append(_at_stop(backend, name, value, note))
            missing += backend.gradient_of(value) is None
        leaves = _leaves(stop) if backend is stop.point.backend else {}
        others = {at: (place, value, "in no module") for at, (place, value) in held.items() if at not in named}
        for at, (place, value) in leaves.items():
            if at not in named:
                before = others.get(at)
                label, why = (before[0], "in no module") if before else (place, "in no module, in no optimizer")
                others[at] = (label, value, f"{why}; gets a gradient here" + ("" if before is None else f": {place}"))
        for place, value, note in others.values():
            rows.append(_at_stop(backend, place, value, note))
        strangers += len(others)
    if not rows:
        return InfoBody("no module with parameters was seen yet" if session.backends else _NO_FRAMEWORK)
    about = f"{missing} without a gradient now" if stop is not None else "gradients are shown only at a stop"
    text = f"{registered} parameter{'s' * (registered != 1)}; {about}"
    if strangers:
        text += f"; {strangers} tensor{'s' * (strangers != 1)} in no module seen so far"
    return InfoBody(text, [*columns, "note", "norm", "grad/norm"] if stop is not None else columns, rows)


def _at_stop(backend: Backend, name: str, value: Any, note: str) -> list[object]:
    """With the norm of the parameter itself, and how large its gradient is beside it."""
    row = _param_row(backend, name, value, backend.gradient_of(value))
    norm, slope = norm_of(backend, value, backend.meta(value), NORM_ELEMENTS * 16), row[4]
    share = slope / norm if isinstance(slope, float) and norm is not None and norm > 0 else None
    return [*row, note, norm, share]


def _param_row(backend: Backend, name: str, value: Any, grad: Any) -> list[object]:
    meta = backend.meta(value)
    norm = norm_of(backend, grad, backend.meta(grad), NORM_ELEMENTS * 16) if grad is not None else None
    has: bool | None = grad is not None
    return [name, str(list(meta.shape or ())), meta.dtype, meta.device, norm, has, meta.requires_grad]


def _leaves(stop: StopContext) -> dict[int, tuple[str, Any]]:
    """The leaves of the graph here, by address: the accumulate node with its line, and the tensor."""
    graph = stop.point.graph
    found: dict[int, tuple[str, Any]] = {}
    for key in graph.order() if graph is not None else ():
        if graph is not None and graph.is_accumulate(key):
            for saved in graph.saved(key):
                if stop.backend.is_tensor(saved.value):
                    info = graph.describe(key)
                    line = f" ({_place(info.forward)})" if info.forward is not None else ""
                    found[id(saved.value)] = (f"leaf of {info.unique_name}{line}", saved.value)
    return found


def named_parameters(backend: Backend) -> list[tuple[str, object]]:
    """See ``steadily``."""
    return steadily(backend.parameters)


def steadily(read: Callable[[], Iterable[tuple[str, object]]]) -> list[tuple[str, object]]:
    """What ``read`` gives of the modules. Raises CommandError when the program keeps changing them meanwhile."""
    for _ in range(5):
        try:
            return list(read())
        except RuntimeError:  # a dict of a module changed while it was read
            continue
    raise CommandError("the program is changing its modules", "try again, or `pause` first")


def _memory(session: Session, _stop: StopContext | None) -> InfoBody:
    found: dict[str, float] = {}
    for backend in session.backends:
        found.update(backend.memory())
    if "rss" not in found:
        found = {**_process_memory(), **found}
    rows: list[list[object]] = [[name, int(size), round(size / 2**20, 1)] for name, size in found.items()]
    text = "memory of this process" if rows else "this system does not report memory use"
    return InfoBody(text, ["what", "bytes", "MiB"], rows)


def _process_memory() -> dict[str, float]:
    """Resident set from /proc (Linux), its peak from getrusage elsewhere."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            return {"rss": float(file.read().split()[1]) * resource.getpagesize()}
    except own(OSError, ImportError, IndexError, ValueError):
        return {}


def _capabilities(session: Session, _stop: StopContext | None) -> InfoBody:
    rows: list[list[object]] = [
        [backend.name, backend.version, name, "yes" if able else "no", _MEANING.get(name, "")]
        for backend in session.backends
        for name, able in dataclasses.asdict(backend.capabilities).items()
    ]
    columns = ["framework", "version", "capability", "available", "what it allows"]
    return InfoBody("" if rows else _NO_FRAMEWORK, columns, rows)


def _breakpoints(session: Session, _stop: StopContext | None) -> InfoBody:
    states = session.table.states()
    rows: list[list[object]] = [
        [s.id, s.spec, "yes" if s.enabled else "no", "trace" if s.trace else "once" if s.temporary else "stop", s.hits,
         "?" if s.matches is None else s.matches, s.message]
        for s in states
    ]  # fmt: skip
    text = f"{len(states)} breakpoint{'s' * (len(states) != 1)}" if states else "no breakpoints"
    return InfoBody(text, ["id", "spec", "enabled", "kind", "hits", "matches", "note"], rows)


_NO_FRAMEWORK = "no framework was imported yet"
_AT_STOP: dict[str, Callable[[StopContext], InfoBody]] = {"backward": _backward}
_ANY_TIME: dict[str, Callable[[Session, StopContext | None], InfoBody]] = {
    "names": _names,
    "params": _params,
    "threads": _threads,
    "memory": _memory,
    "capabilities": _capabilities,
    "breakpoints": _breakpoints,
}
