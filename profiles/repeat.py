"""``profile node X --repeat N``: the node at which the program stands, run again and again. On the parked thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from adbg.engine.backends.base import Hidden
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.breakpoints.table import BreakpointTable
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import Phase
from adbg.profiles.measurement import Measurement

PIECE = 0.1  # seconds: a node is run again in pieces of about that, between which it can be given up
HERE = "."  # the node of the stop, whatever its name


def repeated(point: PausedPoint, request: p.Profile) -> Callable[[int], None]:
    """Runs the node of this stop so many times, with the gradients that flow into it and what was saved for it.

    Raises:
        CommandError: the program stands at another node, or behind one; the profiler measures nothing there.
        Unsupported: the gradients are not known, the node cannot be run by itself.
    """
    graph, backend, key, grads = point.graph, point.backend, point.key, point.grad_outputs
    spec = request.region.spec
    if graph is None or backend is None or key is None or grads is None or point.stop.phase is not Phase.BEFORE:
        raise CommandError("the program does not stand before a node", f"stop there first: tbreak {spec}")
    if request.profiler == "nodes":
        raise CommandError("the node timer measures what the engine runs", "take cprofile, yep or the framework's own")
    info = graph.describe(key)
    if spec != HERE and not _takes(spec, point):
        raise CommandError(f"the program stands at {info.unique_name}, not at {spec}", f"go there first: tbreak {spec}")
    if any(isinstance(value, Hidden) for value in grads):
        raise Unsupported("not all gradients that flow into this node are known", "profile a backward instead")
    backend.rerun(graph, key, grads, 1)  # warms up, and says at once where it cannot be
    return lambda count: backend.rerun(graph, key, grads, count)


def run_in_pieces(again: Callable[[int], None], count: int, now: Measurement) -> str:
    """``count`` times, counted in ``now``. Returns why it ended early, "" where it did not."""
    piece = 1
    try:
        while now.iterations < count and not now.given_up:
            begun, times = time.monotonic(), min(piece, count - now.iterations)
            again(times)
            now.iterations += times
            if time.monotonic() - begun < PIECE:
                piece *= 4
    except own(Exception) as error:
        return f"the node cannot be run again: {error}"
    return "" if now.iterations >= count else f"given up after {now.iterations:,} of {count:,} times"


def _takes(spec: str, point: PausedPoint) -> bool:
    graph, key, state = point.graph, point.key, point.state
    assert graph is not None and key is not None
    table = BreakpointTable(lambda: None)
    table.set_filters([])
    (row,) = table.replace([p.BreakpointRequest(name=spec, id=1)])
    if not row.verified:
        raise CommandError(row.message)
    index = state.index_of(key) if state is not None else 0
    return bool(table.matching_ids(graph.describe(key), lambda: graph.forward_stack(key)[0], index))
