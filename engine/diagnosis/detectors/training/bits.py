"""What lies in tensors, to the bit: hashes of them, and whether a bound explains their values."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.outside import own

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_MOST = 8  # tensors
_ELEMENTS = 1 << 20  # of one of them


def hash_of(facts: Facts, tensor: Any) -> int | None:
    """None of what is too large, without data, or of a kind that gives no memory."""
    if math.prod(facts.shape(tensor)) > _ELEMENTS:
        return None
    found = _Hash()
    try:
        facts.backend.feed_bits(tensor, found.put)
    except own(Exception):
        return None
    return found.value


def hashes_of(facts: Facts, tensors: Iterable[Any]) -> dict[int, int]:
    """Of the first eight of which it can be had, by their places. None among the tensors: it is gone."""
    found: dict[int, int] = {}
    for place, tensor in enumerate(tensors):
        value = hash_of(facts, tensor) if tensor is not None else None
        if value is not None:
            found[place] = value
        if len(found) == _MOST:
            break
    return found


def at_bounds(facts: Facts, tensor: Any) -> bool:
    """Whether every element is the smallest or the largest one: so are those that a clamp holds. Of a weight that was
    initialised at random that is never so."""
    read = values.numbers(facts.backend, tensor)
    return read is not None and len(read.flat) <= _ELEMENTS and len(set(read.flat)) <= 2


class _Hash:
    def __init__(self) -> None:
        self.value = 0

    def put(self, data: Any) -> None:
        self.value = zlib.crc32(data, self.value)
