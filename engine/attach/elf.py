"""Where the functions of a library lie: a reader of ELF symbol tables."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

X86_64, AARCH64 = 62, 183
MACHINES = {2: "sparc", 3: "i386", 8: "mips", 21: "ppc64", 22: "s390x", 40: "arm", X86_64: "x86_64", AARCH64: "aarch64",
            243: "riscv64", 258: "loongarch64"}  # fmt: skip
_LOAD, _SYMTAB, _DYNSYM, _HASH = 1, 2, 11, 0x6FFFFFF6


@dataclass(frozen=True, slots=True)
class Identity:
    """The first bytes of an executable."""

    machine: int
    bits: int

    @property
    def name(self) -> str:
        return MACHINES.get(self.machine, f"ELF machine {self.machine}") + (
            "" if self.bits == 64 else f", {self.bits} bits"
        )


def identity(path: Path) -> Identity:
    """Raises OSError, or ValueError for what is no ELF file."""
    with path.open("rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise ValueError(f"{path} is not an ELF file")
    order = "<" if head[5] == 1 else ">"
    return Identity(struct.unpack_from(order + "H", head, 18)[0], 64 if head[4] == 2 else 32)


def symbols(path: Path, wanted: Collection[str]) -> dict[str, int]:
    """Addresses of those of ``wanted`` that the file defines, counted from where its first byte is mapped.

    Raises OSError, or ValueError for what is not a 64-bit little-endian ELF file.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit ELF file")
        try:
            return _symbols(data, set(wanted))
        except (struct.error, IndexError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def _symbols(data: mmap.mmap, wanted: set[str]) -> dict[str, int]:
    programs, sections = struct.unpack_from("<QQ", data, 32)
    size, count, section_size, section_count = struct.unpack_from("<HHHH", data, 54)
    base = 0
    for index in range(count):
        kind, _, offset, address = struct.unpack_from("<IIQQ", data, programs + index * size)
        if kind == _LOAD:
            base = address - offset
            break
    table = [struct.unpack_from("<IIQQQQIIQQ", data, sections + index * section_size) for index in range(section_count)]
    kinds = {row[1]: row for row in table}
    kind = next((kind for kind in (_HASH, _DYNSYM, _SYMTAB) if kind in kinds), 0)  # the quickest that there is
    if not kind:
        return {}
    section = kinds[kind]
    entries = table[section[6]] if kind == _HASH else section
    symbols = _Symbols(data, entries[4], entries[5] // 24, table[entries[6]][4])
    values = symbols.hashed(section[4], wanted) if kind == _HASH else symbols.all(wanted)
    return {name: value - base for name, value in values.items()}


class _Symbols:
    """A symbol table and the table of its names, by their places in the file."""

    def __init__(self, data: mmap.mmap, entries: int, count: int, names: int) -> None:
        self._data = data
        self._entries = entries
        self._count = count
        self._names = names

    def all(self, wanted: set[str]) -> dict[str, int]:
        pairs = map(self._symbol, range(self._count))
        return {name: value for name, value in pairs if value and name in wanted}

    def hashed(self, table: int, wanted: set[str]) -> dict[str, int]:
        """By the GNU hash table at ``table``: 5 us a name, where reading all takes 3 us a symbol of thousands."""
        buckets, first, blooms, _ = struct.unpack_from("<IIII", self._data, table)
        bucket_at = table + 16 + blooms * 8
        chain_at = bucket_at + buckets * 4
        found: dict[str, int] = {}
        for name in wanted if buckets else ():
            code = _hash(name)
            index = struct.unpack_from("<I", self._data, bucket_at + code % buckets * 4)[0]
            while index >= first:
                other = struct.unpack_from("<I", self._data, chain_at + (index - first) * 4)[0]
                if other | 1 == code | 1 and (symbol := self._symbol(index))[0] == name and symbol[1]:
                    found[name] = symbol[1]
                    break
                if other & 1:
                    break
                index += 1
        return found

    def _symbol(self, index: int) -> tuple[str, int]:
        """(name, value); 0 for one that is not defined here."""
        name_at, _, _, defined, value, _ = struct.unpack_from("<IBBHQQ", self._data, self._entries + index * 24)
        start = self._names + name_at
        return self._data[start : self._data.find(b"\0", start)].decode("latin1"), value if defined else 0


def _hash(name: str) -> int:
    code = 5381
    for byte in name.encode():
        code = (code * 33 + byte) & 0xFFFFFFFF
    return code


def find_bytes(path: Path, wanted: bytes, start: int, length: int) -> int:
    """Where in the file ``wanted`` comes first from ``start`` on, -1 where it does not."""
    with path.open("rb") as file:
        file.seek(start)
        place = file.read(length).find(wanted)
    return -1 if place < 0 else start + place
