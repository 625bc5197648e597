"""A two-dimensional window on a slice of a tensor: reading the slice a person typed, and shrinking it to a panel's
size.

Runs on the thread that asks (a parked one). The slice is read here, never evaluated.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from adbg.engine.backends import torch_private as private
from adbg.engine.backends import torch_tensors
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.types import TensorWindow

_NUMBER = re.compile(r"[+-]?\d+\Z")
_HINT = "write a slice as in Python: [0, 0:64, ::2]"

Index = int | slice


def _number(text: str, part: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not _NUMBER.match(text):
        raise CommandError(f"{part!r} is no index or slice", _HINT)
    return int(text)


def _index(part: str) -> Index:
    pieces = part.split(":")
    if len(pieces) == 1:
        number = _number(part, part)
        if number is None:
            raise CommandError("a slice has an empty place", _HINT)
        return number
    if len(pieces) > 3:
        raise CommandError(f"{part!r} has more than two colons", _HINT)
    start, stop, stride = (_number(piece, part) for piece in (*pieces, "", "")[:3])
    if stride is not None and stride <= 0:
        raise CommandError(f"{part!r} goes backwards, which torch cannot slice", "use a positive stride")
    return slice(start, stop, stride)


def _expand(text: str, dims: int) -> list[Index]:
    """One index per dimension; "..." and missing ones are whole dimensions."""
    body = text.strip()
    if body.startswith("[") != body.endswith("]"):
        raise CommandError(f"{text!r} has an unbalanced bracket", _HINT)
    body = body.strip("[]").strip()
    parts = [part.strip() for part in body.split(",")] if body else []
    if parts and not parts[-1]:
        parts.pop()
    if parts.count("...") > 1:
        raise CommandError("a slice can have one '...' only", _HINT)
    given = len(parts) - parts.count("...")
    if given > dims:
        raise CommandError(f"the slice has {given} indices and the tensor has {dims} dimensions", _HINT)
    if "..." not in parts:
        parts.append("...")
    at = parts.index("...")
    whole: list[Index] = [slice(None)] * (dims - given)
    return [_index(part) for part in parts[:at]] + whole + [_index(part) for part in parts[at + 1 :]]


def resolve(text: str, shape: tuple[int, ...]) -> list[Index]:
    """``text`` against ``shape``: ints made non-negative, slices with all three numbers.

    Raises CommandError naming the dimension that an index does not fit.
    """
    resolved: list[Index] = []
    for dim, (index, size) in enumerate(zip(_expand(text, len(shape)), shape, strict=True)):
        if isinstance(index, slice):
            resolved.append(slice(*index.indices(size)))
            continue
        if not -size <= index < size:
            raise CommandError(
                f"index {index} is out of range: dimension {dim} has {size} elements", f"give 0 to {size - 1}"
            )
        resolved.append(index % size)
    return resolved


def _written(index: Index) -> str:
    if isinstance(index, int):
        return str(index)
    text = f"{index.start}:{index.stop}"
    return text if index.step == 1 else f"{text}:{index.step}"


def _to_two(indices: list[Index]) -> list[Index]:
    """At most two dimensions left: of more, the leading ones are shown at their first index."""
    left = sum(isinstance(index, slice) for index in indices)
    flat: list[Index] = []
    for index in indices:
        if isinstance(index, slice) and left > 2:
            left -= 1
            flat.append(
                slice(index.start, min(index.stop, index.start + 1), 1) if index.start >= index.stop else index.start
            )
        else:
            flat.append(index)
    return flat


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
        indices = _to_two(resolve(slice_text, tuple(dense.shape)))
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
        slice="[" + ", ".join(_written(index) for index in indices) + "]",
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
