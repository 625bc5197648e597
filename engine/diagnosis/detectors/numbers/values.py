"""Single numbers of tensors, for evidence: read from their memory, so that no operator of the framework's runs."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, OperatorCall
from adbg.engine.outside import own, suppress
from adbg.engine.types import TensorStats, ValueState

MOST = 1 << 22  # elements of one tensor that are looked through in Python (0.1 s), once a finding
LARGEST = {"f16": 65504.0, "bf16": 3.3895e38, "f32": 3.4028e38, "f64": 1.7977e308}
NORMAL = {"f16": 6.104e-5, "bf16": 1.1755e-38, "f32": 1.1755e-38, "f64": 2.2251e-308}
WORDS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


def _half(data: bytearray) -> Sequence[float]:
    return array("f", struct.unpack(f"{len(data) // 2}e", data))


def _brain(data: bytearray) -> Sequence[float]:
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return array("f", bytes(wide))


_READ: dict[str, Callable[[bytearray], Sequence[float]]] = {
    "f32": lambda data: array("f", bytes(data)),
    "f64": lambda data: array("d", bytes(data)),
    "i64": lambda data: array("q", bytes(data)),
    "i32": lambda data: array("i", bytes(data)),
    "i16": lambda data: array("h", bytes(data)),
    "i8": lambda data: array("b", bytes(data)),
    "u8": lambda data: array("B", bytes(data)),
    "b1": lambda data: array("B", bytes(data)),
    "f16": _half,
    "bf16": _brain,
}


class Numbers:
    """The elements of one tensor in C order."""

    def __init__(self, shape: tuple[int, ...], dtype: str, flat: Sequence[float]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.flat = flat

    def first_bad(self) -> int | None:
        """Position of the first NaN, else of the first infinity. Of 4 million finite ones: 0.03 s, by their sum, which
        is finite (0.25 s one by one)."""
        total = sum(self.flat)
        if total - total == 0:
            return None
        infinite = None
        for at, number in enumerate(self.flat):
            if number != number:
                return at
            if infinite is None and number - number != 0:
                infinite = at
        return infinite

    def at(self, place: int, shape: tuple[int, ...]) -> float | None:
        """The element that meets element ``place`` of a tensor of ``shape`` under broadcasting; None where the shapes
        do not match so."""
        if len(self.flat) == 1:
            return self.flat[0]
        if self.shape == shape:
            return self.flat[place] if place < len(self.flat) else None
        if len(self.shape) > len(shape):
            return None
        indices = unravelled(place, shape)[len(shape) - len(self.shape) :]
        flat = 0
        for size, index in zip(self.shape, indices):
            if size == 1:
                index = 0
            elif index >= size:
                return None
            flat = flat * size + index
        for size, whole in zip(self.shape, shape[len(shape) - len(self.shape) :]):
            if size not in (1, whole):
                return None
        return self.flat[flat] if flat < len(self.flat) else None


def unravelled(place: int, shape: Sequence[int]) -> list[int]:
    indices = []
    for size in reversed(shape):
        indices.append(place % size if size else 0)
        place = place // size if size else 0
    return indices[::-1]


def index_text(place: int, shape: Sequence[int]) -> str:
    """ "[3, 0]"; "" of a scalar."""
    return "[" + ", ".join(map(str, unravelled(place, shape))) + "]" if shape else ""


def numbers(backend: Backend, value: Any) -> Numbers | None:
    """None where they cannot be read: too many, another dtype, no data."""
    if not backend.is_tensor(value):
        return None
    try:
        meta = backend.meta(value)
        read = _READ.get(meta.dtype)
        if read is None or meta.state is not ValueState.OK or meta.shape is None or not 0 < meta.numel <= MOST:
            return None
        data = bytearray()
        backend.feed_bits(value, data.extend)
        return Numbers(meta.shape, meta.dtype, read(data))
    except own(Exception):
        return None


def few_numbers(backend: Backend, value: Any, most: int) -> Numbers | None:
    """The same of at most ``most`` elements; of more, nothing is read."""
    if not backend.is_tensor(value):
        return None
    try:
        count = backend.meta(value).numel
    except own(Exception):
        return None
    return numbers(backend, value) if count is not None and count <= most else None


def stats(backend: Backend, value: Any) -> TensorStats | None:
    if not backend.is_tensor(value):
        return None
    try:
        return backend.stats(value, bins=1)
    except own(Exception):
        return None


def bad(backend: Backend, value: Any) -> tuple[int, int]:
    """(NaN, infinite) elements; (0, 0) of what is no tensor."""
    return backend.nonfinite(value) if backend.is_tensor(value) else (0, 0)


def norm(backend: Backend, value: Any) -> float | None:
    return backend.norm(value) if backend.is_tensor(value) else None


def shape_text(backend: Backend, value: Any) -> str:
    meta = backend.meta(value)
    return f"{list(meta.shape or ())} {WORDS.get(meta.dtype, meta.dtype)}"


def counted(nan: int, inf: int, numel: int = 0) -> str:
    """ "3 NaN and 1 infinite of 64 elements"."""
    parts = [f"{nan:,} NaN"] if nan else []
    parts += [f"{inf:,} infinite"] if inf else []
    return " and ".join(parts) + (f" of {numel:,} elements" if numel else "")


def plain(number: float) -> str:
    return f"{number:.6g}"


def scalars_of(call: OperatorCall) -> list[float]:
    """Numbers among the arguments of a call, one level of containers deep."""
    found: list[float] = []
    for each in (*call.arguments, *call.keywords.values()):
        for one in each if isinstance(each, (list, tuple)) and len(each) <= 64 else (each,):
            if isinstance(one, (int, float)) and not isinstance(one, bool):
                with suppress(OverflowError):
                    found.append(float(one))
    return found
