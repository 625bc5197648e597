"""``adbg/graph``, ``adbg/find``, ``adbg/path``: rows of the current graph in execution order, one node by its name, and
the path of a gradient. Runs on the parked thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from adbg.engine.backends.base import Graph
from adbg.engine.errors import CommandError
from adbg.engine.graph.index import GraphIndex, index_of
from adbg.engine.graph.nonfinite import count_nonfinite, maker_of, total
from adbg.engine.graph.region import marks_of
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.find import find_key
from adbg.engine.inspect.value_text import norm_of
from adbg.engine.outside import suppress
from adbg.engine.protocol import messages as protocol
from adbg.engine.session.stop_point import CallState, Ran
from adbg.engine.types import GraphRow, Phase

MAX_ROWS = 20_000  # rows of one answer, about 300 bytes each on the wire: 6 MB of the 32 MiB that a message may have
MOST_EXACT = 10**6  # paths that are counted exactly in an answer


def graph_page(stop: StopContext, request: protocol.Graph) -> protocol.GraphBody:
    """Rows ``start`` .. ``start + count`` - 1, or those of ``indices``, of the current graph or of the enclosing call
    that ``backward`` names.
    """
    graph, state = stop.graph(request.backward)
    index = index_of(graph)
    here = position_in(stop, graph, state, index)
    first = max(1, request.start)
    last = min(index.total, first + min(max(0, request.count), MAX_ROWS) - 1)
    for each in request.indices[:MAX_ROWS]:
        index.key_at(each)
    call = state.call if state is not None else None
    return protocol.GraphBody(
        version=index.version,
        backward=call.number if call is not None else 0,
        total=index.total,
        here=here,
        rows=_rows(stop, graph, state, index, here, request.indices[:MAX_ROWS] or range(first, last + 1)),
        depth=call.depth if call is not None else 0,
        note=graph.note,
        truncated=graph.truncated,
    )


def find_node(stop: StopContext, request: protocol.Find) -> protocol.FindBody:
    """Raises CommandError when no node or several have that name."""
    graph, _ = stop.graph()
    return protocol.FindBody(index_of(graph).position[find_key(stop, graph, request.text)])


def gradient_path(stop: StopContext, request: protocol.Path) -> protocol.PathBody:
    """A shortest path from node ``source`` to ``node``. From the roots (``source`` 0) it leads through the node that
    made the first non-finite gradient, or through the first that was given one, where there is one.

    Raises:
        CommandError: no gradient flows from one to the other.
    """
    graph, state = stop.graph()
    index = index_of(graph)
    last = index.key_at(request.node)
    if request.source:
        return protocol.PathBody(_path_between(graph, index, index.key_at(request.source), last), index.total)
    nodes = index.ancestors(graph, last)
    bad = next((key for key in nodes if _nonfinite(stop, graph, state, key)), None)
    maker = maker_of(graph, last, _spoilt(stop, graph, state))
    through = maker if maker is not None else last if bad is None else bad
    path = index.path(graph, lambda key: not index.consumers(graph, key), through)
    path += index.path(graph, through.__eq__, last)[1:]
    ways = index.count_paths(graph, nodes)
    return protocol.PathBody(
        path=[index.position[key] for key in path],
        total=index.total,
        ancestors=len(nodes) - 1,
        contributions=sorted({index.position[key] for key, _ in index.consumers(graph, last)}),
        paths=ways if ways < MOST_EXACT else 0,
        paths_log10=math.log10(ways),
        nonfinite=index.position[bad] if bad is not None else 0,
        maker=index.position.get(maker, 0) if maker is not None else 0,
        slots=_by_slot(index, graph, last),
    )


def _by_slot(index: GraphIndex, graph: Graph, key: int) -> list[list[int]]:
    """Of each slot of a node the positions of those that feed it; one that adds to it twice stands there twice."""
    edges = index.consumers(graph, key)
    found: list[list[int]] = [[] for _ in range(1 + max((slot for _, slot in edges), default=-1))]
    for consumer, slot in edges:
        found[slot].append(index.position[consumer])
    return [sorted(feeders) for feeders in found]


def _path_between(graph: Graph, index: GraphIndex, first: int, last: int) -> list[int]:
    path = index.path(graph, first.__eq__, last)
    if path:
        return [index.position[key] for key in path]
    one, other = (f"#{index.position[key]} {graph.describe(key).unique_name}" for key in (first, last))
    if index.path(graph, last.__eq__, first):
        raise CommandError(
            f"no gradient flows from {one} to {other}, only in the opposite direction",
            f"path #{index.position[last]} #{index.position[first]}",
        )
    raise CommandError(f"no gradient flows from {one} to {other}, in either direction")


def _spoilt(stop: StopContext, graph: Graph, state: CallState | None) -> set[int]:
    """Nodes that are known to have passed on gradients that are not finite, the current one included."""
    found = set(state.spoilt) if state is not None else set()
    point = stop.point
    if graph is point.graph and point.key is not None and point.backend is not None and point.grad_inputs:
        found.discard(point.key)  # it may have been edited since
        with suppress(Exception):  # sparse, quantised
            if any(total(count_nonfinite(point.backend, point.grad_inputs))):
                found.add(point.key)
    return found


def _nonfinite(stop: StopContext, graph: Graph, state: CallState | None, key: int) -> bool:
    ran = state.ran.get(key) if state is not None else None
    if graph is stop.point.graph and key == stop.point.key:
        return _here_figures(stop, graph, ran).nonfinite
    return ran is not None and ran.nonfinite


def position_in(stop: StopContext, graph: Graph, state: CallState | None, index: GraphIndex) -> int:
    """Index of the current node in ``graph``: 0 at the begin (and at a Python line), total + 1 at the end. In an
    enclosing call it is the node that made the inner one.
    """
    point = stop.point
    if state is None:
        return 0
    if graph is not point.graph:
        inner = point.calls[point.calls.index(state) + 1].call
        return index.position.get(inner.parent_key or 0, state.position)
    if point.stop.phase is Phase.END:
        return index.total + 1
    if point.key is not None:
        return index.position.get(point.key, state.position)
    return 0 if point.stop.phase is Phase.BEGIN else state.position


def state_of(index: int, here: int, ran: bool) -> str:
    """ "done", "here" or "todo"."""
    if index == here:
        return "here"
    return "done" if ran or index < here else "todo"


def _rows(
    stop: StopContext, graph: Graph, state: CallState | None, index: GraphIndex, here: int, wanted: Sequence[int]
) -> list[GraphRow]:
    ran: Mapping[int, Ran] = state.ran if state is not None else {}
    keys = [index.order[i - 1] for i in wanted]
    marks = stop.breakpoints(graph, keys) if stop.breakpoints is not None else {}
    regions = marks_of(graph)
    rows = []
    for i, key in zip(wanted, keys):
        seen = ran.get(key)
        now = state_of(i, here, seen is not None)
        ids = marks.get(key, ())
        region = regions.get(key, "")
        if region:
            figures = _here_figures(stop, graph, seen) if now == "here" else seen
            rows.append(_dressed(index.row(graph, i), now, figures, tuple(ids), region))
        elif now == "done" and not ids:
            rows.append(_settled(graph, index, i, seen))
        elif now == "todo" and not ids:
            rows.append(index.row(graph, i))
        else:
            figures = _here_figures(stop, graph, seen) if now == "here" else seen
            rows.append(_dressed(index.row(graph, i), now, figures, tuple(ids)))
    return rows


def _settled(graph: Graph, index: GraphIndex, i: int, seen: Ran | None) -> GraphRow:
    """The row of a node that ran: made once. One that was not seen while it ran is made again when it turns out
    that it was.
    """
    row = index.settled.get(i)
    if row is None or (row.us is None and seen is not None):
        row = index.settled[i] = _dressed(index.row(graph, i), "done", seen, ())
    return row


def _here_figures(stop: StopContext, graph: Graph, seen: Ran | None) -> Ran:
    """Figures of the current node, whose gradient is there."""
    point = stop.point
    us = seen.us if seen is not None and seen.us is not None else point.stop.elapsed_us
    if graph is not point.graph or point.backend is None or not point.grad_outputs or point.grad_outputs[0] is None:
        return seen or Ran(us)
    value = point.grad_outputs[0]
    norm = norm_of(point.backend, value, point.backend.meta(value), limit=1 << 24)
    bad = norm is not None and norm - norm != 0
    return Ran(us, norm, bad or (seen is not None and seen.nonfinite))


def _dressed(row: GraphRow, state: str, seen: Ran | None, breakpoints: tuple[int, ...], region: str = "") -> GraphRow:
    """``row`` with what changes. Spelled out: ``dataclasses.replace`` takes three times as long."""
    return GraphRow(
        row.index, row.key, row.name, row.unique_name, state, row.edges, row.accumulate, row.parameter, row.module,
        row.forward, row.shape, row.dtype, seen.us if seen else None, seen.norm if seen else None,
        seen.nonfinite if seen else False, breakpoints, row.custom, row.compiled, region,
        row.address,
    )  # fmt: skip
