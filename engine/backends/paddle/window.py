"""A two-dimensional window on a slice of a Paddle tensor, by numpy on its memory. Runs on the thread that asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from adbg.engine.backends.common.slices import resolve, to_two, written
from adbg.engine.backends.paddle import tensors as paddle_tensors
from adbg.engine.errors import Unsupported
from adbg.engine.types import TensorWindow


def window(value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow:
    """``rows`` x ``cols`` numbers at most: the slice itself when it fits, else block maxima of |x| (NaN and inf show
    through)."""
    rows, cols = max(1, rows), max(1, cols)
    if not value.is_dense():
        value = value.to_dense()
    array = paddle_tensors.plain(value)
    if array is None:
        raise Unsupported("the tensor has no data, so there is nothing to show")
    indices = to_two(resolve(slice_text, tuple(array.shape)))
    part = array[tuple(indices)] if indices else array
    shape = tuple(int(size) for size in part.shape)
    part = np.atleast_2d(part)
    magnitude = part.dtype.kind == "c"
    with np.errstate(all="ignore"):
        values, reduced = _shrunk(np.abs(part) if magnitude else part, rows, cols)
    ranges = [(index.start, index.stop) if isinstance(index, slice) else (index, index + 1) for index in indices]
    ranges = [(0, 1)] * (2 - len(ranges)) + ranges
    return TensorWindow(
        slice="[" + ", ".join(written(index) for index in indices) + "]",
        shape=shape,
        values=values,
        reduced="|x|" if magnitude and reduced == "exact" else reduced,
        row_range=ranges[-2],
        col_range=ranges[-1],
    )


def _shrunk(part: Any, rows: int, cols: int) -> tuple[tuple[tuple[float, ...], ...], str]:
    height, width = part.shape
    if height == 0 or width == 0:
        return (), "exact"
    if height <= rows and width <= cols:
        return tuple(tuple(float(number) for number in row) for row in part.tolist()), "exact"
    tall, wide = -(-height // rows), -(-width // cols)
    lines = []
    for top in range(0, height, tall):  # by block row: no copy of the whole slice
        block = np.abs(part[top : top + tall].astype(np.float64)).max(axis=0)
        line = np.maximum.reduceat(block, range(0, width, wide)).tolist()
        lines.append(tuple(float(number) for number in line))
    return tuple(lines), f"max|x| per block of {tall}x{wide}"
