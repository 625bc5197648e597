"""The functions of an ELF file by address: its symbols, and where the compiler says that functions begin.

A library exports some functions and keeps others to itself. The unwinder's table (.eh_frame_hdr) has the beginnings of
both, so an address in a function that has no name is not given to the exported one before it, as nm and pprof do:
on libpaddle 132,099 functions have names and 194,587 beginnings are known.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LOAD, _NOTE_SEGMENT, _EH_FRAME = 1, 4, 0x6474E550
_SYMTAB, _DYNSYM = 2, 11
_FUNCTION, _INDIRECT = 2, 10  # STT_FUNC, STT_GNU_IFUNC
_BUILD_ID = 3
_TABLE_OF_WORDS = (0x1B, 0x03, 0x3B)  # encodings: pointer of the frames, count, entries that are relative to the table


@dataclass(frozen=True, slots=True)
class Functions:
    """Sorted by address. ``names`` are offsets into ``text``; a function without a name has none."""

    starts: array[int]  # of functions with names
    sizes: array[int]
    names: array[int]
    begins: array[int]  # of all functions
    segments: tuple[tuple[int, int, int], ...]  # (offset in the file, size, address)
    text: bytes

    def address(self, offset: int) -> int:
        """The address that the file gives to its byte at ``offset``."""
        for start, size, address in self.segments:
            if start <= offset < start + size:
                return offset - start + address
        return offset

    def name(self, address: int) -> str:
        """Mangled; "" for an address in no function that has a name."""
        index = bisect_right(self.starts, address) - 1
        if index < 0:
            return ""
        start, size = self.starts[index], self.sizes[index]
        if size and address >= start + size:
            return ""
        if not size and self.begin(address) > start:
            return ""
        at = self.names[index]
        return self.text[at : self.text.find(b"\0", at)].decode("latin1")

    def begin(self, address: int) -> int:
        """Where the function begins that ``address`` is in; the address itself where that is not known."""
        index = bisect_right(self.begins, address) - 1
        return self.begins[index] if index >= 0 else address


def build_id(path: Path) -> str:
    """In hexadecimal, "" where it has none. Raises OSError, or ValueError for what is no 64-bit ELF file."""
    with _mapped(path) as data, _whole(path):
        for kind, offset, size, _, _ in _programs(data):
            if kind == _NOTE_SEGMENT and (found := _build_id(data, offset, offset + size)):
                return found
    return ""


def _build_id(data: mmap.mmap, at: int, end: int) -> str:
    """Of the notes of a segment."""
    while at + 12 <= end:
        name_size, size, note = struct.unpack_from("<III", data, at)
        name = at + 12
        body = name + (name_size + 3 & ~3)
        if note == _BUILD_ID and data[name : name + 4] == b"GNU\0":
            return data[body : body + size].hex()
        at = body + (size + 3 & ~3)
    return ""


def functions(path: Path) -> Functions:
    """Raises OSError, or ValueError for a file that is not a whole 64-bit little-endian ELF file."""
    with _mapped(path) as data, _whole(path):
        return _functions(data)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Offsets and sizes that are not the file's end in a ValueError."""
    try:
        yield
    except (struct.error, LookupError, ArithmeticError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _mapped(path: Path) -> mmap.mmap:
    # A name of /proc/PID/maps may be a pipe by now, and opening one waits for whoever writes
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ValueError(f"{path} is not a file")
        data = mmap.mmap(number, 0, access=mmap.ACCESS_READ)  # ValueError for an empty file
    finally:
        os.close(number)
    if data[:6] != b"\x7fELF\x02\x01":
        data.close()
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    return data


def _programs(data: mmap.mmap) -> Iterable[tuple[int, int, int, int, int]]:
    """(kind, offset, size in the file, address, flags)"""
    (at,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, flags, offset, address, _, in_file = struct.unpack_from("<IIQQQQ", data, at + index * size)
        yield kind, offset, in_file, address, flags


def _functions(data: mmap.mmap) -> Functions:
    programs = list(_programs(data))
    segments = tuple((offset, size, address) for kind, offset, size, address, _ in programs if kind == _LOAD)
    begins = array("Q")
    for kind, offset, size, address, _ in programs:
        if kind == _EH_FRAME:
            begins = _begins(data[offset : offset + size], address)
    starts, sizes, names, text = _symbols(data)
    return Functions(starts, sizes, names, begins, segments, text)


def _begins(table: bytes, address: int) -> array[int]:
    """The binary search table of .eh_frame_hdr: (begin, entry), both relative to the table, sorted."""
    if tuple(table[1:4]) != _TABLE_OF_WORDS:
        return array("Q")
    (count,) = struct.unpack_from("<I", table, 8)
    entries = array("i")
    entries.frombytes(table[12 : 12 + count * 8])
    return array("Q", [value + address for value in entries[::2]])


def _symbols(data: mmap.mmap) -> tuple[array[int], array[int], array[int], bytes]:
    (at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + index * size) for index in range(count)]
    tables = [row for row in sections if row[1] == _SYMTAB] or [row for row in sections if row[1] == _DYNSYM]
    if not tables:
        return array("Q"), array("Q"), array("Q"), b""
    table = tables[0]
    strings = sections[table[6]]
    raw = data[table[4] : table[4] + table[5] // 24 * 24]
    found = [
        (value, length, name)
        for name, info, _, section, value, length in struct.iter_unpack("<IBBHQQ", raw)
        if info & 15 in (_FUNCTION, _INDIRECT) and section
    ]
    found.sort()
    columns = (array("Q", column) for column in zip(*found)) if found else (array("Q") for _ in range(3))
    starts, sizes, names = columns
    return starts, sizes, names, data[strings[4] : strings[4] + strings[5]]
