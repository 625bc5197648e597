"""Facts about tensors: what is the same whatever the tensors are. Pure, any thread.

A backend computes on its own kind of array; here are the words, the checks of an edit, and the frame of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.common.slices import resolve, to_two, written
from adbg.engine.errors import CommandError
from adbg.engine.outside import own
from adbg.engine.types import TensorWindow

EXACT_ELEMENTS = 1_000_000  # statistics of larger tensors are those of a sample, unless asked for

_WORDS = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "complex128": "c128", "complex64": "c64", "complex32": "c32",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "b1",
}  # fmt: skip
DTYPES = tuple(_WORDS)

Reduced = tuple[tuple[tuple[float, ...], ...], str]  # numbers, and how they were made of the slice


def dtype_word(name: str) -> str:
    """ "f32" for "float32", "f8_e4m3fn" for "float8_e4m3fn"."""
    return _WORDS.get(name, name.replace("float8", "f8"))


def no_tensor(value: Any) -> CommandError:
    return CommandError(f"a {type(value).__name__} is not a tensor", "give an expression whose value is a tensor")


def sample_distance(numel: int, row: int, limit: int) -> int:
    """The distance of a sample of at most ``limit`` elements: coprime to the length of a row, for with rows of 1024 a
    distance of 4 would only see every fourth column."""
    distance = -(-numel // limit)
    while math.gcd(distance, row) != 1:
        distance += 1
    return distance


def window_of(
    shape: tuple[int, ...], slice_text: str, rows: int, cols: int, magnitude: bool,
    shrunk: Callable[[list[int | slice], int, int], tuple[tuple[int, ...], Reduced]],
) -> TensorWindow:  # fmt: skip
    """``rows`` x ``cols`` numbers at most of a slice. ``shrunk(indices, rows, cols)`` gives the slice's shape and its
    numbers. ``magnitude``: they are those of complex elements.

    Raises:
        CommandError: a bad slice.
    """
    indices = to_two(resolve(slice_text, shape))
    part, (values, reduced) = shrunk(indices, max(1, rows), max(1, cols))
    ranges = [(index.start, index.stop) if isinstance(index, slice) else (index, index + 1) for index in indices]
    ranges = [(0, 1)] * (2 - len(ranges)) + ranges
    return TensorWindow(
        slice="[" + ", ".join(written(index) for index in indices) + "]",
        shape=part,
        values=values,
        reduced="|x|" if magnitude and reduced == "exact" else reduced,
        row_range=ranges[-2],
        col_range=ranges[-1],
    )


def blocks(
    height: int, width: int, rows: int, cols: int,
    exact: Callable[[], list[list[Any]]], maxima: Callable[[int, int, int], list[float]],
) -> Reduced:  # fmt: skip
    """The numbers themselves where they fit, else the maxima of |x| in blocks (NaN and inf show through).
    ``maxima(top, tall, wide)`` are those of one row of blocks: no copy of the whole slice."""
    if height == 0 or width == 0:
        return (), "exact"
    if height <= rows and width <= cols:
        return tuple(tuple(float(number) for number in row) for row in exact()), "exact"
    tall, wide = -(-height // rows), -(-width // cols)
    lines = tuple(tuple(map(float, maxima(top, tall, wide))) for top in range(0, height, tall))
    return lines, f"max|x| per block of {tall}x{wide}"


def text_of(value: Any, shown: Callable[[Any], str], limit: int = 2000) -> str:
    """``shown(value)``, cut at ``limit`` characters. Never raises."""
    try:
        text = shown(value)
    except own(Exception) as error:
        return f"<{type(value).__name__}: its repr raised {type(error).__name__}: {error}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ---- edits


def same(where: str, what: str, old: Any, new: Any, remedy: str, otherwise: str) -> None:
    """Raises CommandError where ``what`` of an edit's old and new value differ."""
    if old != new:
        raise CommandError(f"{where} has {what} {old} and the new value has {new}: {otherwise}", remedy)


def filled(old: Any, number: Any, where: str, dtype: str, full_like: Callable[[Any, Any], Any]) -> Any:
    """A tensor like ``old``, of dtype ``dtype``, filled with ``number``. Raises CommandError."""
    if isinstance(number, complex) and not old.is_complex():
        raise CommandError(f"{where} is {dtype} and cannot hold the complex number {number}", "give a real number")
    try:
        return full_like(old, number)
    except own(Exception) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CommandError(
            f"{where} cannot be filled with {number}: {first}", "give a tensor of its shape and dtype"
        ) from None
