"""Norms of what flows into and out of nodes, computed once for all detectors here that look at a visit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detectors.sizes.recurrent import RECURRENT
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.diagnosis.source import line_naming
from adbg.engine.session.running_call import Visit
from adbg.engine.types import SourceLine

GATES = {
    "relu", "threshold", "relu6", "hardtanh", "hardswish", "hardsigmoid", "clamp", "elu", "sigmoid", "tanh",
    "softmax", "logsoftmax", "maxpool2dwithindices", "maxpool2d", "pool2d", "where", "maskedfill", "gelu", "silu",
    "maximum", "minimum",
} | RECURRENT  # fmt: skip
FLAT = {"sign", "round", "floor", "ceil", "trunc", "fix", "heaviside", "frac"}  # their derivative is 0 everywhere

# Layers, by where the units of their result lie.
_ROWS_LAST = {"mm", "addmm", "linear", "layernorm", "nativelayernorm", "rmsnorm"}
_ROWS_FIRST = {
    "convolution", "conv1d", "conv2d", "conv3d", "mkldnnconvolution", "cudnnconvolution", "batchnorm",
    "nativebatchnorm", "cudnnbatchnorm", "groupnorm", "nativegroupnorm", "depthwiseconv2d", "convtranspose2d",
    "conv2dtranspose",
}  # fmt: skip
_VIEWS = {"view", "reshape", "unsafeview", "reshapealiasbackward", "reshapealias", "squeeze", "unsqueeze", "tocopy"}
SHAPED = _VIEWS | {"t", "transpose"}


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


@dataclass(frozen=True, slots=True)
class Origin:
    """Where what made a gradient zero comes from, after the line that computes it. ``line``: None where that one says
    what it is (``relu(self.fc(x))``)."""

    line: SourceLine | None = None
    evidence: tuple[str, ...] = ()


NO_ORIGIN = Origin()


def origin_of(facts: Facts, call: Any, key: int, place: Place) -> Origin:
    """Of an activation that stops gradients from the beginning on. To be asked while its model lives: that of a
    function is gone as the program ends."""
    if place.forward is None:
        return NO_ORIGIN
    tensors = [each.value for at in _leaves_of(call, key) for each in call.saved(at) if each.value is not None]
    by_hand = next((line for each in reversed(tensors) if (line := facts.written(each)) is not None), None)
    evidence: tuple[str, ...] = ()
    if by_hand is not None:
        evidence = (f"the layer before it is initialised at {by_hand.file}:{by_hand.line}: `{facts.text_of(by_hand)}`",)
    if place.op in facts.text_of(place.forward).lower():
        return Origin(None, evidence)
    made = by_hand or line_naming(place.forward.file, place.op)
    made = made or next((line for each in tensors if (line := facts.born(each)) is not None), None)
    return Origin(made, evidence)


def biased_by_hand(facts: Facts, call: Any, key: int) -> SourceLine | None:
    """Where the bias of the layer that feeds an activation was set."""
    for at in _leaves_of(call, key):
        for each in call.saved(at):
            if each.value is not None and len(facts.shape(each.value)) == 1:
                return facts.written(each.value)
    return None


def fed_by(call: Any, key: int) -> tuple[str, int | None]:
    """("last" or "first", node) of the layer whose result an activation is given: on which axis its units lie; ("",
    None) where it is given something else, as in a hinge loss."""
    for at in _way_down(call, key):
        op = plain_name(call.name(at))
        if op in _ROWS_LAST:
            return "last", at
        if op in _ROWS_FIRST:
            return "first", at
    return "", None


def _way_down(call: Any, key: int) -> Iterator[int]:
    """The nodes below an activation, past a bias and views, to its layer at most."""
    for _ in range(4):
        edges = [edge.to for edge in call.edges(key) if edge.to is not None]
        if not edges:
            return
        key = edges[0]
        op = plain_name(call.name(key))
        yield key
        if op in ("add", "addn"):  # a bias
            inner = [edge.to for edge in call.edges(key) if edge.to is not None]
            plain = [each for each in inner if _parameter(call, each) is None]
            if len(plain) != 1 or len(inner) == 1:
                return
            key = plain[0]
            op = plain_name(call.name(key))
            yield key
        if op in _ROWS_LAST or op in _ROWS_FIRST or op not in _VIEWS:
            return


def _leaves_of(call: Any, key: int) -> Iterator[int]:
    """The accumulate nodes of the parameters of the layer that feeds an activation: the weight's, then the bias's."""
    for at in reversed(list(_way_down(call, key))):
        found = [_parameter(call, edge.to) for edge in call.edges(at) if edge.to is not None]
        yield from (each for each in reversed(found) if each is not None)


def _parameter(call: Any, key: int) -> int | None:
    """The accumulate node of a parameter, as it is or in another shape: Paddle adds the bias of a convolution so."""
    if not call.is_accumulate(key) and plain_name(call.name(key)) in SHAPED:
        key = next((edge.to for edge in call.edges(key) if edge.to is not None), key)
    return key if call.is_accumulate(key) else None
