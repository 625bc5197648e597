"""``adbg/info``: tables for people and scripts (L4).

On the parked thread; ``running_table`` on the reader thread while the program runs.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import traceback
from collections.abc import Callable

from adbg.engine.backends.base import Backend
from adbg.engine.errors import CommandError, NotStopped
from adbg.engine.graph.index import GraphIndex, index_of, remember, seen
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.value_text import NORM_ELEMENTS, norm_of, one_line
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import InfoBody
from adbg.engine.python import frames as inspect_frames
from adbg.engine.types import SourceLine

PATH_ENDS = 100  # nodes shown at either end of a path that is longer than both

_MEANING = {
    "pre_hooks": "stop before any node",
    "post_hooks": "stop behind any node",
    "edit_grad_outputs": "change a gradient before its node",
    "edit_grad_inputs": "change a gradient behind its node",
    "saved_tensors": "saved tensors by name",
    "forward_stacks": "the forward line that made a node",
    "module_paths": "the module that made a node",
    "nested_backward": "step into a backward run by a node",
    "execution_order": "the order of nodes before they run",
    "contributions": "parts of a summed gradient",
    "native_vlog": "the framework writes VLOG records itself",
}


def info(stop: StopContext, request: protocol.Info) -> InfoBody:
    """The table ``request.what`` ("why 12" and "why" take a node).

    Raises:
        CommandError: there is no such table.
    """
    what, _, rest = request.what.strip().partition(" ")
    if what in stop.tables:
        return stop.tables[what]()
    if what == "why":
        return _why(stop, rest)
    made = _AT_STOP.get(what)
    if made is not None:
        return made(stop)
    return _unstopped(what, stop.point.backend, stop.point.thread)


def running_table(what: str, backend: Backend | None) -> InfoBody:
    """A table that needs no stop: threads, params, memory, capabilities, names.

    Raises:
        NotStopped: the table needs a stop.
        CommandError: there is no such table.
    """
    what = what.strip()
    if what == "params":
        return _params(backend)
    if what.partition(" ")[0] in (*_AT_STOP, "why") and what != "names":
        raise NotStopped(f"`info {what}` needs a stop, and the program runs", "`pause` stops it at the next node")
    return _unstopped(what, backend, 0)


def _unstopped(what: str, backend: Backend | None, stopped: int) -> InfoBody:
    if what == "threads":
        return _threads(backend, stopped)
    if what == "memory":
        return _memory(backend)
    if what == "capabilities":
        return _capabilities(backend)
    if what == "names":
        return _names_table(seen(), "seen so far")
    raise CommandError(f"no table {what!r}", "info " + " | ".join(TABLES))


def _backward(stop: StopContext) -> InfoBody:
    """The backward calls around this stop, outermost first."""
    point = stop.point
    rows = []
    for state in point.calls:
        call = state.call
        ms = round((time.perf_counter_ns() - state.started_ns) / 1e6, 3) if state.started_ns else None
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
    columns = ["backward", "depth", "entry", "position", "roots", "called at", "ms since begin", "create_graph"]
    return InfoBody(text, columns, rows)


def _place(line: SourceLine | None) -> str:
    return f"{line.file}:{line.line}" if line is not None else ""


def _graph(stop: StopContext) -> InfoBody:
    """Nodes of the graph at hand by name: how many, how many ran, their time where it was seen."""
    graph, state = stop.graph()
    index = index_of(graph)
    position = state.position if state is not None else 0
    rows: list[list[object]] = []
    for name, keys in index.names(graph).items():
        ran = [state.ran[key] for key in keys if key in state.ran] if state is not None else []
        times = [r.us for r in ran if r.us is not None]
        done = sum(index.position[key] <= position for key in keys)
        rows.append([name, len(keys), done, round(sum(times), 1) if times else None, sum(r.nonfinite for r in ran)])
    rows.sort(key=lambda row: (-int(str(row[1])), str(row[0])))
    text = f"{index.total} nodes, {len(rows)} names, {len(set(graph.roots()))} roots"
    return InfoBody(
        f"{text}; {graph.note}" if graph.note else text, ["name", "nodes", "reached", "us", "non-finite"], rows
    )


def _names(stop: StopContext) -> InfoBody:
    """What a breakpoint spec may name: framework names, modules, parameters, forward lines; first those at hand,
    then those seen.
    """
    here: list[tuple[str, str, int]] = []
    if stop.point.graph is not None:
        here = _graph_names(stop, index_of(stop.point.graph))
        remember(here)
    known = {(kind, name) for kind, name, _ in here}
    return _names_table(
        [*here, *(entry for entry in seen() if entry[:2] not in known)], "in this graph and seen before"
    )


def _graph_names(stop: StopContext, index: GraphIndex) -> list[tuple[str, str, int]]:
    graph = stop.point.graph
    assert graph is not None
    names = [("name", name, len(keys)) for name, keys in index.names(graph).items()]
    return names + [(kind, name, count) for (kind, name), count in index.places(graph).items()]


def _names_table(entries: list[tuple[str, str, int]], where: str) -> InfoBody:
    text = f"{len(entries)} names {where}" if entries else "no graph was looked at yet"
    return InfoBody(text, ["name", "nodes", "kind"], [[name, count, kind] for kind, name, count in entries])


def _why(stop: StopContext, text: str) -> InfoBody:
    """The path along which a gradient comes from a root to a node, root first."""
    graph, state = stop.graph()
    index = index_of(graph)
    key = index.find(graph, f"#{text}" if text.isdigit() else text) if text else stop.point.key
    if key is None:
        raise CommandError("no node at hand", "name one: `why #12`")
    path = index.path_from_root(graph, key)
    rows: list[list[object]] = []
    for node in path if len(path) <= 2 * PATH_ENDS else path[:PATH_ENDS] + path[-PATH_ENDS:]:
        described = graph.describe(node)
        ran = state.ran.get(node) if state is not None else None
        meta = graph.input_meta(node)
        shape = str(list(meta[0].shape)) if meta and meta[0].shape is not None else ""
        rows.append(
            [
                index.position.get(node, 0),
                described.unique_name,
                shape,
                ran.norm if ran else None,
                _place(described.forward),
            ]
        )
    title = f"{len(path)} nodes from the root to {index.label(graph, key)}"
    if len(rows) < len(path):
        title += f"; the first and the last {PATH_ENDS} are shown"
    return InfoBody(title, ["#", "node", "shape", "norm", "forward"], rows)


def _threads(backend: Backend | None, stopped: int) -> InfoBody:
    named = {thread.ident: thread for thread in threading.enumerate()}
    root = inspect_frames.framework_root(backend.name) if backend is not None else ""
    rows: list[list[object]] = []
    for ident, frame in sys._current_frames().items():
        thread = named.get(ident)
        name = thread.name if thread is not None else "(not started by Python)"
        if name.startswith("adbg-"):
            continue
        inner = inspect_frames.live_frames(frame, root)[0]
        where = traceback.FrameSummary(
            inner.f_code.co_filename, inner.f_lineno, inner.f_code.co_name, lookup_line=False
        )
        state = "stopped" if ident == stopped else "running"
        rows.append([ident, name, state, f"{where.name} {where.filename}:{where.lineno}"])
    return InfoBody(f"{len(rows)} threads", ["id", "name", "state", "at"], rows)


def _params(backend: Backend | None) -> InfoBody:
    """Parameters of the modules seen so far, with their gradients as they are now."""
    if backend is None:
        raise CommandError("no framework is loaded yet", "go on until the program imports one")
    rows: list[list[object]] = []
    missing = 0
    for name, value in backend.parameters():
        meta = backend.meta(value)
        grad = backend.gradient_of(value)
        norm = norm_of(backend, grad, backend.meta(grad), NORM_ELEMENTS * 16) if grad is not None else None
        missing += grad is None
        rows.append(
            [name, str(list(meta.shape or ())), meta.dtype, meta.device, norm, grad is not None, meta.requires_grad]
        )
    if not rows:
        return InfoBody("no module with parameters was seen yet", [], [])
    text = f"{len(rows)} parameters, {missing} without a gradient now"
    return InfoBody(text, ["name", "shape", "dtype", "device", "grad norm", "grad", "requires_grad"], rows)


def _memory(backend: Backend | None) -> InfoBody:
    found = dict(backend.memory()) if backend is not None else {}
    if "rss" not in found:
        found = {**_process_memory(), **found}
    rows: list[list[object]] = [[name, int(size), round(size / 2**20, 1)] for name, size in found.items()]
    return InfoBody("memory of this process" if rows else "this system does not tell", ["what", "bytes", "MiB"], rows)


def _process_memory() -> dict[str, float]:
    """Resident set from /proc (Linux), its peak from getrusage elsewhere."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            return {"rss": float(file.read().split()[1]) * resource.getpagesize()}
    except (OSError, ImportError, IndexError, ValueError):
        return {}


def _capabilities(backend: Backend | None) -> InfoBody:
    if backend is None:
        raise CommandError("no framework is loaded yet", "go on until the program imports one")
    rows: list[list[object]] = [
        [field.name, "yes" if getattr(backend.capabilities, field.name) else "no", _MEANING.get(field.name, "")]
        for field in dataclasses.fields(backend.capabilities)
    ]
    return InfoBody(f"{backend.name} {backend.version}", ["capability", "here", "what it allows"], rows)


_AT_STOP: dict[str, Callable[[StopContext], InfoBody]] = {
    "backward": _backward,
    "graph": _graph,
    "names": _names,
    "params": lambda stop: _params(stop.point.backend),
}
TABLES = ("backward", "graph", "why [NODE]", "names", "params", "threads", "memory", "capabilities", "breakpoints")
