"""Norms of what flows into and out of nodes, computed once for all detectors here that look at a visit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adbg.engine.diagnosis.detectors.numbers.singular import plain_name
from adbg.engine.session.running_call import Visit
from adbg.engine.types import SourceLine

GATES = {
    "relu", "threshold", "relu6", "hardtanh", "hardswish", "hardsigmoid", "clamp", "elu", "sigmoid", "tanh",
    "softmax", "logsoftmax", "maxpool2dwithindices", "maxpool2d", "pool2d", "where", "maskedfill", "gelu", "silu",
}  # fmt: skip
FLAT = {"sign", "round", "floor", "ceil", "trunc", "fix", "heaviside", "frac"}  # their derivative is 0 everywhere


@dataclass(slots=True)
class Size:
    """Of one node in one backward: norms of all that flows in, and of what leaves by slot (None: undefined)."""

    key: int
    op: str
    entering: float
    leaving: tuple[float | None, ...]
    elements: int  # of the first gradient that leaves


class _Last:
    """Of the visit that was looked at last, on one thread at a time (the turn's)."""

    visit: tuple[int, int, int] = (0, 0, 0)
    size: Size | None = None


def size_of(visit: Visit) -> Size:
    running = visit.running
    mark = (id(running), running.serial, visit.key)
    if _Last.visit == mark and _Last.size is not None:
        return _Last.size
    backend = running.backend
    entering = 0.0
    for place, value in enumerate(visit.outs):
        if backend.is_tensor(value):
            known = visit.norm if not place else None
            entering = math.hypot(entering, backend.norm(value) if known is None else known)
    leaving = tuple([backend.norm(value) if backend.is_tensor(value) else None for value in visit.ins or ()])
    first = next((value for value in visit.ins or () if backend.is_tensor(value)), None)
    elements = 1
    if first is not None:
        for size in first.shape:
            elements *= int(size)
    size = Size(visit.key, plain_name(running.call.name(visit.key)), entering, leaving, elements)
    _Last.visit, _Last.size = mark, size
    return size


@dataclass(frozen=True, slots=True)
class Place:
    """A node over iterations."""

    op: str
    unique: str
    module: str | None
    forward: SourceLine | None
