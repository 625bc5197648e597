"""Begin, end and norm of every node of a call, written down by the extension: no Python runs between two nodes.

Ours in the virtual tables of the nodes' classes (see ``native.watch``) reads what the engine hands to a node. Python
hooks do it where something else is needed: a graph with a hook of the script's in front of a node (what that returns is
what the node is given), ``paddle.grad`` (it runs on copies), gradients on a GPU. On the thread of the call, or on one
parked inside it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.paddle import tensors
from adbg.engine.backends.paddle.graph import root_addresses
from adbg.engine.backends.paddle.native.core import NativeCore, core
from adbg.engine.node_batch import NodeBatch
from adbg.engine.outside import own

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.call import PaddleCall

MOST = 1 << 20  # nodes of a call that are written down, of 36 bytes each
_REMEMBERED = 64  # graphs: a training script has a few


class Written:
    """What is written down of one call."""

    def __init__(self, noted: NativeCore, events: Any, count: int, alike: int, norms: bool) -> None:
        self._noted = noted
        self._events = events
        self._nodes = count
        self._alike = alike
        self._norms = norms
        self._shapes = 0
        self._count = 0

    def twin(self, shapes: bool) -> Hashable:
        """See ``BackwardCall.twin``."""
        if not shapes:
            return self._alike
        return (self._alike, self._shapes, self._count) if self._norms else None

    def take(self, call: PaddleCall) -> NodeBatch:
        """What came since the last time."""
        places = self._noted.places.get(self._alike)
        if places is None:
            places = self._places(call)
        rows, lost, shapes = self._noted.module.paddle_events_take(self._events, places)
        self._shapes = (self._shapes + shapes) & 0xFFFFFFFFFFFFFFFF
        batch = NodeBatch(rows, lost)
        self._count += len(batch)
        return batch

    def so_far(self, start: int) -> NodeBatch | None:
        """See ``BackwardCall.collected``: the order of execution is known once something was taken."""
        places = self._noted.places.get(self._alike)
        if places is None:
            return None
        return NodeBatch(self._noted.module.paddle_events_since(self._events, places, start))

    def _places(self, call: PaddleCall) -> bytes:
        """By key, the position in the order of execution, which takes 5 to 9 us a node: it is remembered. Raises
        LookupError: the extension has met the nodes in another order than the walk."""
        if list(call.addresses()) != self._noted.module.paddle_events_nodes(self._events):
            self._noted.events_problem = "the nodes of a graph were met in another order than in Python"
            raise LookupError(self._noted.events_problem)
        positions = array("I", bytes(4 * self._nodes))
        for index, key in enumerate(call.order(), 1):
            positions[key] = index
        known = self._noted.places
        if len(known) >= _REMEMBERED:
            known.clear()
        found = known[self._alike] = positions.tobytes()
        return found

    def end(self) -> None:
        self._noted.module.paddle_events_end(self._events)


def begin(call: PaddleCall, norms: bool) -> Written | None:
    """Write down what the nodes of ``call``, which is about to run, do. None: it cannot be done."""
    noted = core()
    if noted is None or noted.watch is None or noted.events_problem or call.wanted:
        return None
    roots = call.root_values()
    try:
        if not roots or not roots[0].place.is_cpu_place():
            return None
        begun = noted.module.paddle_events_begin(root_addresses(roots), MOST, _ask, norms)
    except own(Exception) as error:
        noted.events_problem = f"{type(error).__name__}: {error}"
        return None
    if begun is None:
        return None
    events, count, alike = begun
    return Written(noted, events, count, alike, norms)


def _ask(value: Any) -> tuple[float, bool] | None:
    """(norm, whether it is not finite) of a gradient that cannot be read in memory."""
    try:
        norm = tensors.norm(value)
        return norm, not math.isfinite(norm) and any(tensors.nonfinite(value))
    except own(Exception):  # no figure, no harm
        return None
