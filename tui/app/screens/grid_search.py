"""The next number of a slice that is not finite, found through windows of it. Pure but for ``read``; any thread.

A window that does not fit is one of maxima, through which NaN and Inf show: a slice of 4096 x 4096 takes at most four
windows per region, not sixteen million numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

Values = Sequence[Sequence[float]]
Read = Callable[[str, int, int], Values]  # (slice, rows, cols): numbers of it, or maxima of as many blocks at most
BLOCKS = 256  # asked for at once
PLANES = 2000  # one window each, if all is finite
_RANGE = re.compile(r"\d+:\d+(:\d+)?$")


def moved_slice(slice_text: str, top: int, left: int, rows: int, cols: int) -> tuple[str, int, int]:
    """The part of a slice that begins ``top`` and ``left`` elements into its last two ranges and holds rows x cols,
    kept inside; and (top, left) as they became.

    ``slice_text`` is normalised ("[0, 0:64, 8:256:2]").
    """
    parts = _parts(slice_text)
    ranges = _ranges(parts)
    if not ranges:
        return slice_text, 0, 0
    places = [0, 0]
    for axis, i, first, room in zip((1, 0), reversed(ranges), (left, top), (cols, rows)):
        whole = _range(parts[i])
        places[axis] = first = min(max(first, 0), max(len(whole) - room, 0))
        part = whole[first : first + room]
        parts[i] = f"{part.start}:{part.stop}" + (f":{part.step}" if part.step != 1 else "")
    return f"[{', '.join(parts)}]", places[0], places[1]


def extent(slice_text: str) -> tuple[int, int]:
    """Rows and columns of a normalised slice."""
    parts = _parts(slice_text)
    sizes = [1, 1, *(len(_range(parts[i])) for i in _ranges(parts))]
    return sizes[-2], sizes[-1]


def next_nonfinite(
    slice_text: str, row: int, column: int, read: Read, shape: Sequence[int] = ()
) -> tuple[str, int, int] | None:
    """(slice, row, column) of the first number that is not finite behind that place, row by row, from the start again
    behind the end; None where all are finite. (-1, -1) is before the first.

    With the tensor's ``shape`` the planes behind this one are looked through as well, ``PLANES`` of them at most.
    """
    places = [(slice_text, row, column), *((plane, -1, -1) for plane in _planes(slice_text, shape))]
    for text, behind, at in [*places, (slice_text, -1, -1)]:
        rows, cols = extent(text)
        regions = [(behind, behind + 1, at + 1, cols)] if 0 <= behind < rows else []
        for top, bottom, left, right in [*regions, (behind + 1, rows, 0, cols)]:
            found = _first(text, top, bottom, left, right, read)
            if found is not None:
                return text, *found
    return None


def _planes(slice_text: str, shape: Sequence[int]) -> list[str]:
    """The slices with other indices in the dimensions that have one index, those behind this one first."""
    parts = _parts(slice_text)
    fixed = [i for i, part in enumerate(parts) if part.isdigit()]
    if not fixed or len(parts) != len(shape):
        return []
    sizes = [shape[i] for i in fixed]
    here = 0
    for i, size in zip(fixed, sizes):
        here = here * size + int(parts[i])
    count = math.prod(sizes)
    found = []
    for number in range(here + 1, here + min(count, PLANES + 1)):
        rest = number % count
        for i, size in zip(reversed(fixed), reversed(sizes)):
            rest, index = divmod(rest, size)
            parts[i] = str(index)
        found.append(f"[{', '.join(parts)}]")
    return found


def _first(text: str, top: int, bottom: int, left: int, right: int, read: Read) -> tuple[int, int] | None:
    if top >= bottom or left >= right:
        return None
    while bottom - top > 1:
        part = moved_slice(text, top, left, bottom - top, right - left)[0]
        blocks = [not all(map(math.isfinite, line)) for line in read(part, BLOCKS, 1)]
        if True not in blocks:
            return None
        tall = -(-(bottom - top) // BLOCKS)
        top += blocks.index(True) * tall
        bottom = min(top + tall, bottom)
    while True:
        part = moved_slice(text, top, left, 1, right - left)[0]
        numbers = [math.isfinite(number) for number in read(part, 1, BLOCKS)[0]]
        if False not in numbers:
            return None
        wide = -(-(right - left) // BLOCKS)
        left += numbers.index(False) * wide
        if wide == 1:
            return top, left
        right = min(left + wide, right)


def _parts(slice_text: str) -> list[str]:
    inside = slice_text.strip("[] ")
    return [part.strip() for part in inside.split(",")] if inside else []


def _ranges(parts: list[str]) -> list[int]:
    """Which parts are the last two ranges."""
    return [i for i, part in enumerate(parts) if _RANGE.match(part)][-2:]


def _range(part: str) -> range:
    start, stop, *step = (int(piece) for piece in part.split(":"))
    return range(start, stop, *step)
