"""Begin, end and norm of every node of a call, written down by the extension: no Python runs between two nodes.

It stands in for three functions of the engine's (``docs/native.md``), and has one C++ hook in front of every node,
which reads the gradient that the node is about to be given. What it cannot read (GPU, sparse, subclasses) it hands to
``_ask`` below, through a hook of torch's that calls Python.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from adbg.engine.backends.torch import private, tensors
from adbg.engine.backends.torch.native import screen
from adbg.engine.backends.torch.native.core import Core, apart
from adbg.engine.backends.torch.native.walk import CoreWalk
from adbg.engine.node_batch import NodeBatch
from adbg.engine.outside import own

MOST = 1 << 20  # nodes of a call that are written down, of 48 bytes each
_REMEMBERED = 64  # graphs: a training script has a few

_donors: list[Any] = []  # kept for good: its hook is called


class Written:
    """What is written down of one call. On its thread, or on one parked inside it."""

    def __init__(self, core: Core, walk: CoreWalk, events: Any, alike: int | None, norms: bool = True) -> None:
        self._core = core
        self._walk = walk
        self._events = events
        self.kin = alike
        self._norms = norms
        self._shapes = 0
        self._count = 0
        self._taken = b""  # the places, once something was taken

    @property
    def twin(self) -> Hashable:
        """See ``BackwardCall.twin``, with shapes; ``kin`` is that without."""
        return (self.kin, self._shapes, self._count) if self.kin is not None and self._norms else None

    def graph(self) -> tuple[int, int, int, bytes] | None:
        """Behind its end: what the extension needs to know it again (numbers for the graph and for the shapes of its
        gradients, how many nodes ran), and the places of the nodes by key; None where it cannot."""
        places = self._core.places.get(self.kin)
        if self.kin is None or places is None or not self._norms:
            return None
        return self.kin, self._shapes, self._count, places

    def take(self, order: Callable[[], Sequence[int]], partial: bool) -> NodeBatch:
        """What came since the last time. ``order``: of execution; ``partial``: it follows from more than the graph."""
        places = self._taken = self._places(order, partial)
        rows, lost, shapes = self._core.module.torch_events_take(self._events, self._walk.raw, places)
        self._shapes = (self._shapes + shapes) & 0xFFFFFFFFFFFFFFFF
        batch = NodeBatch(rows, lost)
        self._count += len(batch)
        return batch

    def so_far(self, start: int) -> NodeBatch | None:
        """See ``BackwardCall.collected``: the order of execution is known once something was taken."""
        places = self._taken
        if not places:
            return None
        return NodeBatch(self._core.module.torch_events_since(self._events, self._walk.raw, places, start))

    def _places(self, order: Callable[[], Sequence[int]], partial: bool) -> bytes:
        """By key, the position in the order. The order of a graph of 600 nodes takes 150 us: it is remembered."""
        known = self._core.places
        if not partial and self.kin in known:
            return known[self.kin]
        positions = array("I", bytes(4 * self._walk.size))
        for index, key in enumerate(order(), 1):
            positions[key] = index
        found = positions.tobytes()
        if not partial and self.kin is not None:
            if len(known) >= _REMEMBERED:
                known.clear()
            known[self.kin] = found
        return found

    def end(self) -> None:
        self._core.module.torch_events_end(self._events)


def begin(core: Core, walk: CoreWalk, outputs: tuple[Any, ...], norms: bool = True, most: int = MOST) -> Written | None:
    """Write down what the next backward of this thread does. None: it cannot be done."""
    if "events" in core.failed:
        return None
    module = core.module
    try:
        if not ready(core, outputs):
            return None
        tensor = outputs[0] if outputs else None
        if type(tensor) is not torch.Tensor or private.function_depth() or screen.compiled():
            return None
        events = module.torch_events_begin(walk.raw, tensor, most, norms)
        if events is None:
            return None
        return Written(core, walk, events, module.torch_alike(walk.raw), norms)
    except own(Exception) as error:
        core.failed["events"] = f"{type(error).__name__}: {error}"
        return None


def ready(core: Core, outputs: tuple[Any, ...]) -> bool:
    """Whether the engine's functions are ours. Checks are made with the first tensor of the program's that they can be
    made with."""
    if core.events_on:
        return True
    if not screen.possible(core, outputs):
        return False
    if not _donors:
        _donors.append(apart(_donor, core.module))
    why = core.module.torch_events(True) if _donors[0] else "no hook of torch's was found that calls Python"
    if why:
        core.failed["events"] = why
    core.events_on = not why
    return core.events_on


def put_back(core: Core) -> None:
    """The engine's functions are torch's own again; calls that run are not followed any more."""
    core.events_on = False
    if core.module is not None:
        core.module.torch_events(False)
        core.tell_failures(False)


def _donor(module: Any) -> bool:
    node: Any = getattr(torch._C, "_functions").UndefinedGrad()  # noqa: B009  (not in the hints)
    before = node.register_prehook(_ask(module))
    return bool(module.torch_events_donor(node, before.hooks_dict_ref()))


def _ask(module: Any) -> Callable[[tuple[Any, ...]], None]:
    def ask(grad_outputs: tuple[Any, ...]) -> None:
        try:
            value = next((value for value in grad_outputs if value is not None), None)
            if value is not None:
                norm = tensors.norm(value)
                module.torch_events_figure(norm, not math.isfinite(norm) and any(tensors.nonfinite(value)))
        except own(Exception):  # no figure, no harm
            return

    return ask
