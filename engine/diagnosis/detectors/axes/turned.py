"""Where an axis of a tensor goes, by operators that only turn, cut or reshape it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.graphs.calls import plain, shape

_SWAPS = frozenset({"transpose", "swapaxes", "swapdims"})
_FOLDS = frozenset({"reshape", "view", "flatten"})


def axis_behind(call: OperatorCall, axis: int) -> int | None:
    """The axis of the result that axis ``axis`` of the first operand becomes, or is folded into as a whole. None for
    other operators, and where it is gone: cut into parts, indexed, merged into more than it can be told."""
    name, source, result = plain(call.name), shape(call.operands[0]), shape(call.results[0])
    given, rank = numbers_of(call), len(source)
    order = [each % rank for each in given]
    whole = any(isinstance(each, (list, tuple)) for each in (*call.arguments[1:2], *call.keywords.values()))
    if name in ("t", "T", "mT") and rank == 2:
        found: int | None = 1 - axis
    elif name in _SWAPS and len(given) == 2 and not whole:
        found = order[1] if axis == order[0] else order[0] if axis == order[1] else axis
    elif name in (*_SWAPS, "permute") and sorted(order) == list(range(rank)):  # Paddle's transpose takes the new order
        found = order.index(axis)
    elif name == "unsqueeze" and len(given) == 1:
        found = axis + (given[0] % len(result) <= axis)
    elif name == "squeeze" and source[axis] > 1:
        gone = order or range(rank)
        found = axis - sum(1 for each in gone if each < axis and source[each] == 1)
    elif name in _FOLDS:
        found = folded(source, axis, result)
    elif name == "getitem" and len(call.arguments) == 2:
        found = _indexed(call.arguments[1], axis, rank)
    else:
        found = None
    return found if found is not None and found < len(result) and result[found] >= source[axis] else None


def numbers_of(call: OperatorCall) -> list[int]:
    """The axes among the arguments: ``transpose(x, 0, 1)``, ``permute(x, (2, 0, 1))``, ``dim0=0, dim1=1``."""
    found: list[int] = []
    for each in (*call.arguments[1:], *call.keywords.values()):
        for one in each if isinstance(each, (list, tuple)) else (each,):
            if isinstance(one, int) and not isinstance(one, bool):
                found.append(one)
    return found


def folded(source: Sequence[int], axis: int, result: Sequence[int]) -> int | None:
    """By the strides that its elements have: an axis of the result that has all of them."""
    inner = math.prod(source[axis + 1 :])
    for at, size in enumerate(result):
        below = math.prod(result[at + 1 :])
        if size > 1 and below <= inner and inner * source[axis] <= below * size:
            return at
    return None


def _indexed(index: Any, axis: int, rank: int) -> int | None:
    """Numbers, slices, None and ``...`` only."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(each is None or each is Ellipsis or type(each) in (int, slice) for each in parts):
        return None
    used = sum(1 for each in parts if each is not None and each is not Ellipsis)
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (rank - used)
    source = target = 0
    for each in parts:
        if each is None:
            target += 1
            continue
        if source == axis:
            return target if isinstance(each, slice) and each == slice(None) else None
        source += 1
        target += isinstance(each, slice)
    return target + axis - source
