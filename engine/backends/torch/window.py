"""A two-dimensional window on a slice of a tensor: reading the slice a person typed, and shrinking it to a panel's
size.

Runs on the thread that asks (a parked one). The slice is read here, never evaluated.
"""

from __future__ import annotations

from typing import Any

import torch

from adbg.engine.backends.common.slices import resolve, to_two, written
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch import tensors as torch_tensors
from adbg.engine.errors import Unsupported
from adbg.engine.types import TensorWindow


def window(value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow:
    """``rows`` x ``cols`` numbers at most: the slice itself when it fits, else block maxima of |x| (NaN and inf show
    through)."""
    rows, cols = max(1, rows), max(1, cols)
    with private.undisturbed():
        if value.layout is not torch.strided and not value.is_nested:
            value = value.to_dense()
        dense = torch_tensors.plain(value)
        if dense is None:
            raise Unsupported("the tensor has no data (meta, fake or of a trace), so there is nothing to show")
        indices = to_two(resolve(slice_text, tuple(dense.shape)))
        part = dense[tuple(indices)] if indices else dense
        shape = tuple(int(size) for size in part.shape)
        while part.dim() < 2:
            part = part.unsqueeze(0)
        if part.dim() > 2:
            part = part.reshape(-1, part.shape[-1])
        magnitude = part.is_complex()
        values, reduced = _shrunk(part.abs() if magnitude else part, rows, cols)
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
    height, width = int(part.shape[0]), int(part.shape[1])
    if height == 0 or width == 0:
        return (), "exact"
    if height <= rows and width <= cols:
        return tuple(tuple(float(number) for number in row) for row in part.tolist()), "exact"
    tall, wide = -(-height // rows), -(-width // cols)
    lines = []
    for top in range(0, height, tall):  # by block row: no copy of the whole slice
        block = part[top : top + tall].to(torch.float64).abs().amax(dim=0)
        whole = width // wide * wide
        line = block[:whole].view(-1, wide).amax(dim=1).tolist()
        if whole < width:
            line.append(float(block[whole:].amax().item()))
        lines.append(tuple(float(number) for number in line))
    return tuple(lines), f"max|x| per block of {tall}x{wide}"
