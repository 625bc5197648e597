"""The bytes of a tensor as they lie in memory, for digests that ranks compare. Runs on the thread that asks.

Of a contiguous tensor on the CPU nothing is copied; of any other numpy gets a copy. Nothing is converted, and no
operator of Paddle runs. A distributed tensor gives this rank's part.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from adbg.engine.backends.paddle.native.own import aids_aside
from adbg.engine.backends.paddle.tensors import defined
from adbg.engine.errors import Unsupported

PIECE = 16 << 20  # bytes: 10 ms of hashing at 1.6 GB/s

Put = Callable[[memoryview], object]


def feed_bits(value: Any, put: Put) -> None:
    """See ``Backend.feed_bits``. Of a sparse tensor the indices, then the values."""
    if not defined(value):
        raise Unsupported("the gradient is undefined: it has no data")
    if value.is_dist():
        value = value._local_value()
    if value.is_dense():
        _feed(value, put)
        return
    with aids_aside():
        parts = [value.indices()] if value.is_sparse_coo() else [value.crows(), value.cols()]
        parts.append(value.values())
    for part in parts:
        _feed(part, put)


def part_of(value: Any) -> str:
    """The placements of a distributed tensor; "" where it is the same on every rank."""
    if not value.is_dist() or all(place.is_replicated() for place in value.placements):
        return ""
    return ", ".join(map(str, value.placements))


def _feed(value: Any, put: Put) -> None:
    if 0 in value.shape:
        return
    if not value._is_initialized():
        raise Unsupported("the tensor has no data: it is not initialized")
    if value.place.is_cpu_place() and value.is_contiguous():
        size = math.prod(value.shape) * value.element_size()
        memory = memoryview((ctypes.c_char * size).from_address(value.data_ptr())).cast("B")
    else:
        copy: Any = np.ascontiguousarray(value.numpy()).reshape(-1).view(np.uint8)
        memory = memoryview(copy)
    for start in range(0, len(memory), PIECE):
        put(memory[start : start + PIECE])
