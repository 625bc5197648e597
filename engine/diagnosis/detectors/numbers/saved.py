"""What saved tensors tell: the first operator of a forward that gave a number that is not finite, and why a node made
one of finite gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall, Graph, SavedValue
from adbg.engine.diagnosis.detectors.numbers import singular, values
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.graph.forward_origin import spoilt
from adbg.engine.graph.index import index_of
from adbg.engine.outside import own
from adbg.engine.types import ValueState

SECONDS = 1.0  # of a search
_SUSPECTS = {
    "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "div", "reciprocal", "pow", "acos", "asin", "atanh",
}  # fmt: skip


@dataclass(slots=True)
class Source:
    """Where it begins. ``kind``: "operator" (node ``key``), "parameter" (its accumulate node), "data" (an operand of
    node ``key`` from outside the graph), "" (node ``key`` has it; what made it is not known)."""

    kind: str
    key: int
    why: str = ""
    name: str = ""
    evidence: list[str] = field(default_factory=list)
    sure: bool = True
    value: tuple[str, int, int] | None = None  # of data: shape and dtype, NaN, infinite elements
    numel: int = 0
    negative: bool = False  # of data: the first bad element is minus infinity


def usable(graph: Graph, key: int) -> Sequence[SavedValue]:
    try:
        return [each for each in graph.saved(key) if each.state is ValueState.OK]
    except own(Exception):
        return ()


def exponent_of(graph: Graph, key: int) -> str:
    try:
        return str(graph.attributes(key).get("exponent", ""))
    except own(Exception):
        return ""


def first_in_forward(backend: Backend, call: BackwardCall, below: Collection[int] | None = None) -> Source | None:
    """The first value in forward order that is not finite, masks of -inf set aside, and what made it; where saved
    tensors do not have one, the first operator that was asked for something outside of its domain.

    Args:
        below: nodes to look at; None: all.
    """
    order = [key for key in index_of(call).order if below is None or key in below]
    for key in (key for key in order if call.is_accumulate(key)):
        for each in usable(call, key):
            if backend.is_tensor(each.value) and spoilt(backend, each.value):
                found = Source("parameter", key, name=call.describe(key).parameter or "")
                found.evidence.append(_held(backend, found.name or "this leaf", each.value))
                return found
    until = time.monotonic() + SECONDS
    addresses: dict[int, int] | None = None
    suspect = None
    for key in (key for key in reversed(order) if not call.is_accumulate(key)):
        if time.monotonic() > until:
            break
        for each in usable(call, key):
            if not backend.is_tensor(each.value) or not spoilt(backend, each.value):
                continue
            if suspect is not None:
                return suspect
            if addresses is None:
                addresses = {call.address(at): at for at in order}
            return _made_by(backend, call, key, each, addresses)
        if suspect is None:
            suspect = _suspect(backend, call, key)
    return suspect


def _held(backend: Backend, name: str, value: Any) -> str:
    nan, inf = backend.nonfinite(value)
    return f"{name} {values.shape_text(backend, value)} has {values.counted(nan, inf, backend.meta(value).numel)}"


def _made_by(backend: Backend, call: BackwardCall, key: int, saved: SavedValue, addresses: dict[int, int]) -> Source:
    node = call.describe(key).unique_name
    told = [_held(backend, f"{saved.name} saved by {node}", saved.value)]
    if saved.name == "result":
        return Source("operator", key, _why_here(backend, call, key, saved.value), evidence=told)
    maker = backend.node_address(getattr(saved.value, "grad_fn", None))
    at = addresses.get(maker) if maker is not None else None
    if at is not None:
        return Source("operator", at, _why_here(backend, call, at, saved.value), evidence=told)
    if maker is None and not backend.has_graph(saved.value):
        found = values.numbers(backend, saved.value)
        place = found.first_bad() if found is not None else None
        negative = False
        if found is not None and place is not None:
            negative = found.flat[place] == -math.inf
            told.append(f"{saved.name}{values.index_text(place, found.shape)} is {values.plain(found.flat[place])}")
        nan, inf = backend.nonfinite(saved.value)
        what = values.shape_text(backend, saved.value)
        numel = backend.meta(saved.value).numel
        return Source("data", key, "", saved.name, told, True, (what, nan, inf), numel, negative)
    return Source("", key, evidence=told, sure=False)


def _why_here(backend: Backend, call: BackwardCall, key: int, result: Any) -> str:
    """Why node ``key`` gave ``result`` in the forward, as far as what it saved tells."""
    read = values.numbers(backend, result)
    place = read.first_bad() if read is not None else None
    if read is None or place is None:
        return ""
    op = plain_name(call.describe(key).name)
    operands: dict[str, float] = {}
    largest = 0.0
    for each in usable(call, key):
        one = values.numbers(backend, each.value)
        if one is not None:
            met = one.at(place, read.shape)
            largest = max(largest, max(map(abs, one.flat)))
            if met is not None:
                operands[each.name] = met
    first, second = operands.get("self"), operands.get("other")
    exponent = exponent_of(call, key)
    scalars = [float(exponent)] if exponent.replace(".", "", 1).lstrip("-").isdigit() else []
    return singular.made_in_forward(
        op, [first, second] if second is not None else [first], scalars, read.flat[place], read.dtype, largest
    )


def _suspect(backend: Backend, call: BackwardCall, key: int) -> Source | None:
    op = plain_name(call.describe(key).name)
    if op not in _SUSPECTS:
        return None
    exponent = exponent_of(call, key)
    for each in usable(call, key):
        found = values.stats(backend, each.value)
        if found is None:
            continue
        why = singular.outside_domain(op, each.name, found.min, found.max, found.zero, exponent)
        if why:
            node = call.describe(key).unique_name
            low = f"{each.name} saved by {node} goes from {found.min:.6g} to {found.max:.6g}, {found.zero:,} are 0"
            return Source("operator", key, why, evidence=[low], sure=False)
    return None


# ------------------------------------------------------------------ backward


@dataclass(slots=True)
class Made:
    """A node that made numbers that are not finite of finite gradients."""

    key: int
    why: str
    evidence: list[str]
    masked: bool = False  # the gradient that came in is 0 there
    overflow: str = ""  # the dtype whose range was left
    spoilt: bool = False  # what it saved is not finite: the forward was not
    expression: str = ""  # a value that shows it, at a stop there


def made_here(backend: Backend, graph: Graph, key: int, outs: Sequence[Any], ins: Sequence[Any]) -> Made:
    """Why node ``key``, given finite ``outs``, gives ``ins`` that are not finite."""
    made = Made(key, "", [])
    saved = [each for each in usable(graph, key) if backend.is_tensor(each.value)]
    for each in saved:
        nan, inf = backend.nonfinite(each.value)
        if nan or inf:
            made.evidence.append(_held(backend, f"saved {each.name}", each.value))
            made.spoilt = made.spoilt or spoilt(backend, each.value)
    slot = next(slot for slot, value in enumerate(ins) if any(values.bad(backend, value)))
    nan, inf = backend.nonfinite(ins[slot])
    meta = backend.meta(ins[slot])
    made.evidence.insert(
        0, f"grad_inputs[{slot}] {values.shape_text(backend, ins[slot])} has {values.counted(nan, inf, meta.numel)}"
    )
    read = values.numbers(backend, ins[slot])
    place = read.first_bad() if read is not None else None
    if read is None or place is None:
        return made
    where = values.index_text(place, read.shape)
    came, incoming = _incoming(backend, outs, place, read.shape)
    operands: dict[str, float] = {}
    largest = 0.0
    for each in saved:
        one = values.numbers(backend, each.value)
        if one is None:
            continue
        met = one.at(place, read.shape)
        largest = max(largest, max(map(abs, one.flat)))
        if met is None and len(one.flat) < len(read.flat) and 0.0 in one.flat:
            met = 0.0  # of a reduction: some of its results are
            made.evidence.append(f"saved {each.name} {list(one.shape)} has elements that are 0")
        elif met is not None:
            made.evidence.append(f"saved {each.name}{where} is {values.plain(met)}")
        if met is not None:
            operands[each.name] = met
            if not made.expression and (met == 0 or abs(met) == 1):
                made.expression = f"saved['{each.name}']"
    if incoming is not None:
        made.evidence.append(f"grad_outputs[{came}]{where} is {values.plain(incoming)}: finite")
        made.masked = incoming == 0
    made.evidence.append(f"grad_inputs[{slot}]{where} is {values.plain(read.flat[place])}")
    op = plain_name(graph.describe(key).name)
    made.why = singular.made_in_backward(op, incoming, operands, exponent_of(graph, key))
    if not made.why and not made.spoilt:
        _left_range(backend, made, outs, read, largest)
    return made


def _incoming(backend: Backend, outs: Sequence[Any], place: int, shape: tuple[int, ...]) -> tuple[int, float | None]:
    """The slot, and the number there."""
    for slot, out in enumerate(outs):
        one = values.numbers(backend, out)
        if one is not None:
            return slot, one.at(place, shape)
    return 0, None


def _left_range(backend: Backend, made: Made, outs: Sequence[Any], read: values.Numbers, largest: float) -> None:
    peak = 0.0
    for out in outs:
        one = values.numbers(backend, out)
        if one is not None:
            peak = max(peak, max(map(abs, one.flat)))
    limit = values.LARGEST.get(read.dtype)
    if limit is None or math.isinf(largest) or not (peak > limit**0.5 or peak * max(largest, 1.0) * 64 > limit):
        return
    made.overflow = read.dtype
    made.why = f"the gradient is beyond the largest {values.WORDS[read.dtype]}, {values.plain(limit)}"
    made.evidence.append(f"what came in goes up to {values.plain(peak)}, what was saved up to {values.plain(largest)}")
