"""The part of Python's marshal format that cProfile's files are written in, read without trusting the file.

``marshal.loads`` is for code that is trusted: of a damaged file it has ended the interpreter (SIGSEGV), and nine bytes
made it take 16 GB. Here each length is checked against the bytes that are left, and nothing but tables of counts is
known: dicts, tuples, text, numbers and None. What ``marshal.dumps`` of every Python from 3.4 on writes of them is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

Value = None | bool | int | float | str | tuple["Value", ...] | dict["Value", "Value"]

_DEEPEST = 8  # a table of functions is a dict of tuples of a dict of tuples
_REFERRED = 0x80  # the bit of a type that says: what follows may be referred to again
_DIGIT, _DIGITS = 15, 8  # bits of a digit of a long number; the most digits: counts are of 64 bits
_NULL: Final = object()  # the end of a dict
_OPEN: Final = object()  # a tuple or a dict that is still being read, and every dict: nothing refers to one
_UTF8 = ("utf-8", "surrogatepass")


def loads(data: bytes) -> Value:
    """The first value of ``data``. Raises ValueError for what is cut off, nested too deeply, or no table's."""
    return _Reader(data).value(0)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._known: list[object] = []  # what is referred to, by its number

    def value(self, depth: int) -> Value:
        read = self._read(depth)
        if read is _NULL:
            raise ValueError("it has an end where a value belongs")
        return read  # type: ignore[return-value]

    def _read(self, depth: int) -> object:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        byte = self._take(1)[0]
        kind = chr(byte & ~_REFERRED)
        if kind == "r":
            return self._reference()
        number = -1
        if byte & _REFERRED:
            number = len(self._known)
            self._known.append(_OPEN)
        if kind in _TEXTS:
            size, encoding = _TEXTS[kind]
            value: object = self._take(self._size(size)).decode(*encoding)
        elif kind in "()":
            count = self._size(1 if kind == ")" else 4)
            value = tuple([self.value(depth + 1) for _ in range(count)])
        elif kind == "{":
            return self._dict(depth)
        elif kind in _PLAIN:
            value = _PLAIN[kind](self)
        else:
            raise ValueError(f"it has a value of kind {kind!r}")
        if number >= 0:
            self._known[number] = value
        return value

    def _dict(self, depth: int) -> dict[Value, Value]:
        found: dict[Value, Value] = {}
        while (key := self._read(depth + 1)) is not _NULL:
            # Hashing a tuple of tuples that refer to each other takes exponential time
            if isinstance(key, dict) or (isinstance(key, tuple) and any(isinstance(one, (tuple, dict)) for one in key)):
                raise ValueError("a key is not one of a function")
            found[key] = self.value(depth + 1)  # type: ignore[index]
        return found

    def _reference(self) -> object:
        (number,) = struct.unpack("<I", self._take(4))
        if number >= len(self._known) or self._known[number] is _OPEN:
            raise ValueError("it refers to a value that it does not have")
        return self._known[number]

    def _size(self, width: int) -> int:
        """A length, or a number of values: each takes a byte at least."""
        size = int.from_bytes(self._take(width), "little")
        if size > len(self._data) - self._at:
            raise ValueError("it is cut off")
        return size

    def _take(self, size: int) -> bytes:
        at = self._at
        if size > len(self._data) - at:
            raise ValueError("it is cut off")
        self._at = at + size
        return self._data[at : self._at]

    def _int(self) -> int:
        return int.from_bytes(self._take(4), "little", signed=True)

    def _long(self) -> int:
        count = self._int()
        if abs(count) > _DIGITS:
            raise ValueError("it has a number that is too large")
        digits: tuple[int, ...] = struct.unpack(f"<{abs(count)}H", self._take(2 * abs(count)))
        value = sum(digit << _DIGIT * place for place, digit in enumerate(digits))
        return -value if count < 0 else value

    def _float(self) -> float:
        (value,) = struct.unpack("<d", self._take(8))
        return float(value)

    def _decimal(self) -> float:
        return float(self._take(self._size(1)))


# kind: (bytes of its length, encoding); short or long, ASCII or not, interned or not
_TEXTS = {
    "u": (4, _UTF8), "t": (4, _UTF8), "a": (4, ("ascii",)), "A": (4, ("ascii",)), "z": (1, ("ascii",)),
    "Z": (1, ("ascii",)),
}  # fmt: skip
_PLAIN: dict[str, Callable[[_Reader], object]] = {
    "0": lambda _: _NULL, "N": lambda _: None, "T": lambda _: True, "F": lambda _: False, "i": _Reader._int,
    "l": _Reader._long, "g": _Reader._float, "f": _Reader._decimal,
}  # fmt: skip
