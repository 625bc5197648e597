"""Which library a sleeping thread waits for: the innermost one on its stack above the C library.

The kernel tells the stack pointer of a thread that sleeps in a system call, and its stack stands still meanwhile: the
first word on it that points into the code of another library is (nearly always) a return address. Nothing is stopped.
"""

from __future__ import annotations

import bisect
import os
import struct

_DEPTH = 4096  # bytes of the stack that are looked through
_BELOW = ("libc.so", "libc-", "libpthread", "ld-linux", "libstdc++", "libgcc_s", "[vdso]")


class Callers:
    """The libraries of one process; ``library`` asks for one thread. Never raises: "" where nothing can be told."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._folder = f"{proc}/{pid}"
        self._starts: list[int] = []
        self._ends: list[tuple[int, str]] = []
        for start, end, path in _code(f"{self._folder}/maps"):
            self._starts.append(start)
            self._ends.append((end, os.path.basename(path)))

    def library(self, tid: int) -> str:
        """ "libtorch_cpu.so"; "" for a thread that runs, or where this user may not ask."""
        try:
            with open(f"{self._folder}/task/{tid}/syscall", encoding="ascii") as file:
                fields = file.read().split()
            stack = int(fields[-2], 16)  # number, six arguments, stack pointer, program counter
            with open(f"{self._folder}/mem", "rb", buffering=0) as memory:
                words = os.pread(memory.fileno(), _DEPTH, stack)
        except (OSError, ValueError, IndexError, OverflowError):
            return ""
        for (word,) in struct.iter_unpack("=Q", words[: len(words) // 8 * 8]):
            name = self._library_of(word)
            if name and not name.startswith(_BELOW):
                return name
        return ""

    def _library_of(self, address: int) -> str:
        place = bisect.bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._ends[place][0]:
            return ""
        return self._ends[place][1]


def _code(path: str) -> list[tuple[int, int, str]]:
    """(first address, last address, file) of what can be executed, in order."""
    found = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(None, 5)
                if "x" in fields[1] and len(fields) == 6:
                    start, end = fields[0].split("-")
                    found.append((int(start, 16), int(end, 16), fields[5].strip()))
    except (OSError, ValueError, IndexError):
        return []
    return sorted(found)
