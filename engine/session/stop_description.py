"""Stops described: where a thread stands, as the front end is told and as the answers need it. On that thread."""

from __future__ import annotations

import dataclasses
import threading
import types
from collections.abc import Callable, Sequence

from adbg.engine.backends.base import Backend, BackwardCall, Graph
from adbg.engine.frames import locals_of
from adbg.engine.outside import own
from adbg.engine.python.user_code import source_line
from adbg.engine.session.running_call import Running
from adbg.engine.session.stop_point import CallState, PausedPoint
from adbg.engine.types import Evidence, NodeStop, Phase, StopReason

_NAMED = 3


def point_in_call(
    running: Running,
    rank: int,
    reason: StopReason,
    phase: Phase,
    key: int | None,
    ids: tuple[int, ...],
    message: str,
    elapsed: float | None,
    evidence: tuple[Evidence, ...] = (),
) -> PausedPoint:
    """At node ``key`` of a running call, or at its begin or end. ``elapsed``: microseconds that the node took."""
    call = running.call
    total = call.count()
    stop = NodeStop(
        reason=reason,
        phase=phase,
        thread=threading.get_ident(),
        backward=call.number,
        index={Phase.BEGIN: 0, Phase.END: total + 1}.get(phase, running.state.position),
        total=total,
        depth=call.depth,
        rank=rank,
        breakpoints=ids,
        node=call.describe(key) if key is not None else None,
        enclosing=running.enclosing(),
        location=call.location,
        message=message,
        iteration=running.backend.iteration,
        elapsed_us=elapsed,
        truncated=call.truncated,
        evidence=evidence,
    )
    return PausedPoint(stop, stop.thread, running.backend, call, running.states(), key)


def point_at_line(
    frame: types.FrameType,
    backends: Sequence[Backend],
    running: Running | None,
    key: int | None,
    rank: int,
    defect: Callable[[str, BaseException], None],
) -> PausedPoint:
    """At ``adbg.breakpoint()`` in ``frame``. ``running``: the call in whose node's (``key``) Python code that is."""
    stop = NodeStop(
        reason=StopReason.BREAKPOINT,
        phase=Phase.PYTHON,
        thread=threading.get_ident(),
        backward=0,
        index=0,
        total=0,
        depth=0,
        rank=rank,
        location=source_line(frame),
        iteration=max((backend.iteration for backend in backends), default=0),
    )
    backend, graph = _graph_so_far(frame, backends, defect)
    calls: list[CallState] = []
    if running is not None:
        around = point_in_call(running, rank, stop.reason, stop.phase, None, (), "", None)
        calls = around.calls
        enclosing = around.stop.enclosing
        if key is not None:
            enclosing += (running.call.describe(key).unique_name,)
        stop = dataclasses.replace(around.stop, location=stop.location, enclosing=enclosing)
        if graph is None or _part_of(graph, running.call):
            backend, graph = running.backend, running.call
    return PausedPoint(stop, stop.thread, backend, graph, calls, frame=frame, around=key)


def _part_of(graph: Graph, call: BackwardCall) -> bool:
    """Whether the tensors in reach are those of the forward, and no graph is being made inside the node."""
    known = {call.address(key) for key in call.order()}
    return all(graph.address(root) in known for root in graph.roots())


def _graph_so_far(
    frame: types.FrameType, backends: Sequence[Backend], defect: Callable[[str, BaseException], None]
) -> tuple[Backend | None, Graph | None]:
    """The graph that the tensors among the frame's locals have, and whose it is."""
    for backend in backends:
        names = locals_of(frame)
        try:
            graph = backend.graph_of(list(names.values()))
        except own(Exception) as error:
            defect("the graph so far is not known", error)
            continue
        if graph is not None:
            left = {id(value) for value in graph.left_out}
            if left:
                _tell_left_out([name for name, value in names.items() if id(value) in left], graph)
            return backend, graph
    return (backends[0] if backends else None), None


def _tell_left_out(names: Sequence[str], graph: Graph) -> None:
    """``graph`` is without those of the tensors ``names``: in its note, with the way to see them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    graph.add_note(
        f"left out: what a finished backward has used up, the graph of {', '.join(names[:_NAMED])}{more} "
        f"(`p {names[0]}.grad_fn` is its root; a backward with retain_graph=True leaves it usable, and it is shown)"
    )
