"""What the kernel tells of a process, without touching it: the files of ``/proc/PID``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A line of ``maps``. ``path`` is "" for memory that no file is behind."""

    start: int
    end: int
    access: str  # "r-xp"
    offset: int
    path: str


@dataclass(frozen=True, slots=True)
class Call:
    """The system call that a thread waits in. ``number`` -1: in none that the kernel names (a page fault)."""

    number: int
    arguments: tuple[int, ...]
    stack: int
    pc: int


class Proc:
    """Process ``pid``. Every method raises OSError where the kernel does: FileNotFoundError or ProcessLookupError when
    the process is gone, PermissionError when it is not ours to look at."""

    def __init__(self, pid: int, root: Path = PROC) -> None:
        self.pid = pid
        self.folder = root / str(pid)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(errors="surrogateescape")

    def status(self, tid: int | None = None) -> dict[str, str]:
        """``status``, by the names of its lines."""
        text = self.text("status" if tid is None else f"task/{tid}/status")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}

    def started(self) -> int:
        """When, in the kernel's ticks: with the pid it names one process for ever."""
        return int(self._fields()[19])

    def runs(self) -> tuple[int, float] | None:
        """The process that began it, and the CPU seconds of its threads so far; None of one that has ended and waits
        for that. See proc(5): fields 3 (state), 4 (parent), 14 and 15 (ticks) of ``stat``."""
        fields = self._fields()
        return None if fields[0] in "ZX" else (int(fields[1]), _seconds(fields))

    def spent(self, tid: int) -> float:
        """CPU seconds of one of its threads so far."""
        return _seconds(self._fields(f"task/{tid}/stat"))

    def _fields(self, name: str = "stat") -> list[str]:
        """Of ``stat``, from the third on: the name before it may have blanks and brackets."""
        return self.text(name).rpartition(")")[2].split()

    def maps(self) -> list[Mapping]:
        return list(self._maps())

    def _maps(self) -> Iterator[Mapping]:
        for line in self.text("maps").splitlines():
            words = line.split(None, 5)
            start, _, end = words[0].partition("-")
            path = words[5] if len(words) == 6 else ""
            yield Mapping(int(start, 16), int(end, 16), words[1], int(words[2], 16), path)

    def threads(self) -> list[int]:
        """The main thread first."""
        return sorted(map(int, os.listdir(self.folder / "task")), key=lambda tid: (tid != self.pid, tid))

    def call(self, tid: int) -> Call | None:
        """What a thread waits in; None while it runs."""
        words = self.text(f"task/{tid}/syscall").split()
        if not words or words[0] == "running":
            return None
        number, *rest = (int(word, 0) for word in words)
        return Call(number, tuple(rest[:-2]), rest[-2], rest[-1])

    def waits_in(self, tid: int) -> str:
        """The kernel's function that a thread sleeps in, "" where it does not say."""
        name = self.text(f"task/{tid}/wchan").strip()
        return "" if name == "0" else name

    def file_of(self, mapping: Mapping) -> Path:
        """The file behind a mapping as the process sees it: it may have another root. One that was replaced since is
        reached through what the process still holds of it."""
        if mapping.path.endswith(" (deleted)"):
            if mapping.path == os.readlink(self.folder / "exe"):
                return self.folder / "exe"
            return self.folder / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
        return self.folder / "root" / mapping.path.lstrip("/")


def _seconds(fields: list[str]) -> float:
    """In user mode and in the kernel, of the fields from the third on."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
