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
_LOAD, _SYMTAB, _DYNSYM = 1, 2, 11


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
    found: dict[str, int] = {}
    for section in sorted((row for row in table if row[1] in (_SYMTAB, _DYNSYM)), key=lambda row: row[1] != _DYNSYM):
        names = table[section[6]]
        strings = data[names[4] : names[4] + names[5]]
        entries = data[section[4] : section[4] + section[5] // 24 * 24]
        for name_at, _, _, defined, value, _ in struct.iter_unpack("<IBBHQQ", entries):
            if not defined or not value:
                continue
            name = strings[name_at : strings.find(b"\0", name_at)].decode("latin1")
            if name in wanted:
                found.setdefault(name, value - base)
        if len(found) == len(wanted):
            break
    return found


def find_bytes(path: Path, wanted: bytes, start: int, length: int) -> int:
    """Where in the file ``wanted`` comes first from ``start`` on, -1 where it does not."""
    with path.open("rb") as file:
        file.seek(start)
        place = file.read(length).find(wanted)
    return -1 if place < 0 else start + place
