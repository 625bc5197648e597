"""A slice of a tensor as the user types it: read against a shape, never evaluated. Any thread."""

from __future__ import annotations

import re

from adbg.engine.errors import CommandError

_NUMBER = re.compile(r"[+-]?\d+\Z")
_HINT = "write a slice as in Python: [0, 0:64, ::2]"

Index = int | slice


def _number(text: str, part: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not _NUMBER.match(text):
        raise CommandError(f"{part!r} is not an index or a slice", _HINT)
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
        raise CommandError(f"{part!r} goes backwards, which a framework cannot slice", "use a positive stride")
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


def written(index: Index) -> str:
    if isinstance(index, int):
        return str(index)
    text = f"{index.start}:{index.stop}"
    return text if index.step == 1 else f"{text}:{index.step}"


def to_two(indices: list[Index]) -> list[Index]:
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
