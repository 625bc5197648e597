"""gperftools' CPU profiles (``.prof``), which yep writes: addresses, and the memory map that says whose they are.

A file is words of the machine that wrote it: header 0, n, 0, the sampling period in microseconds, 0; then samples
(count, depth, that many program counters, the innermost first); a trailer 0, 1, 0; then ``/proc/self/maps`` as text.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

from adbg.profiles.report.formats.problem import damaged
from adbg.profiles.report.model import NATIVE, SECONDS, Builder, Frame, Profile
from adbg.profiles.report.symbols.resolve import Located, Mapping, Resolver

_KIND = "gperftools profile"
_LAYOUTS = (("<", "Q"), ("<", "L"), (">", "Q"), (">", "L"))  # standard sizes: 8 and 4 bytes
_HANDLERS = ("ProfileHandler::SignalHandler", "CpuProfiler::prof_handler", "__restore_rt", "ProfileRecordWrapper")


def is_gperftools(head: bytes) -> bool:
    return _layout(head) is not None


def _layout(head: bytes) -> tuple[str, str] | None:
    for order, word in _LAYOUTS:
        size = struct.calcsize(order + word)
        if len(head) >= 5 * size:
            zero, count, version, period, pad = struct.unpack_from(order + 5 * word, head)
            if (zero, version, pad) == (0, 0, 0) and 3 <= count < 16 and 0 < period <= 60_000_000:
                return order, word
    return None


def read(path: Path) -> Profile:
    data = path.read_bytes()
    layout = _layout(data)
    if layout is None:
        raise damaged(path, _KIND, "its header is not one")
    words = _words(data, *layout)
    period = words[3] / 1e6
    counts: dict[tuple[int, ...], int] = {}
    end = _samples(words, 2 + words[1], counts)
    text = data[end * struct.calcsize(layout[0] + layout[1]) :] if end else b""
    if not end and not counts:
        raise damaged(
            path, _KIND, "it has no samples and no end", "was the program killed before the profiler stopped?"
        )
    beside = path.parent / "maps"
    if not end and beside.is_file():  # kept apart by who started it: the profiler writes its own at the end
        text = beside.read_bytes()
    maps = list(mappings(text.decode("utf-8", "replace")))
    builder = Builder()
    note = _add_stacks(builder, counts, Resolver(maps, until=path.stat().st_mtime), period)
    meta: dict[str, object] = {"profiler": "gperftools", "period": period}
    if not end:
        note = "the file has no end: the program was killed while it was sampled; " + note
    if note:
        meta["note"] = note.rstrip("; ")
    return Profile(builder.frames, builder.samples, SECONDS, lines="first", period=period, meta=meta)


def _words(data: bytes, order: str, word: str) -> array[int]:
    size = struct.calcsize(order + word)
    code = next(code for code in "QLI" if array(code).itemsize == size)
    words = array(code)
    words.frombytes(data[: len(data) // size * size])
    if (order == "<") != (struct.pack("=H", 1) == b"\1\0"):
        words.byteswap()
    return words


def _samples(words: array[int], at: int, counts: dict[tuple[int, ...], int]) -> int:
    """Adds them up; returns the index of the first word behind the trailer, 0 where there is none."""
    length = len(words)
    while at + 2 < length:
        count, depth = words[at], words[at + 1]
        if count == 0 and depth == 1 and words[at + 2] == 0:
            return at + 3
        stack = tuple(words[at + 2 : at + 2 + depth])
        if depth == 0 or len(stack) < depth or depth > 4096:
            return 0
        counts[stack] = counts.get(stack, 0) + count
        at += 2 + depth
    return 0


def mappings(text: str) -> Iterator[Mapping]:
    """Executable lines of /proc/self/maps. gperftools writes "build=…" lines as well, which are none."""
    for line in text.splitlines():
        parts = line.split(None, 5)
        if len(parts) < 5 or "-" not in parts[0] or "x" not in parts[1]:
            continue
        try:
            start, end = (int(one, 16) for one in parts[0].split("-"))
            major, _, minor = parts[3].partition(":")
            device = (int(major, 16), int(minor, 16)) if minor else (0, 0)
            inode = int(parts[4]) if parts[4].isdigit() else 0
            path = parts[5].strip() if len(parts) > 5 else ""
            yield Mapping(start, end, int(parts[2], 16), path, device, inode)
        except ValueError:
            continue


def _add_stacks(builder: Builder, counts: dict[tuple[int, ...], int], resolver: Resolver, period: float) -> str:
    # Every counter but the innermost is where a call returns to: the call itself is before it.
    wanted = {pc - 1 if place else pc for stack in counts for place, pc in enumerate(stack)}
    located = resolver.locate(wanted)
    frames = {pc: builder.frame(_frame(pc, located[pc])) for pc in wanted}
    names = [frame.name for frame in builder.frames]
    handlers = {index for index, name in enumerate(names) if any(handler in name for handler in _HANDLERS)}
    for stack, count in counts.items():
        indices = [frames[pc - 1 if place else pc] for place, pc in enumerate(stack)]
        while len(indices) > 1 and indices[1] in handlers:  # the signal's own frames above what it interrupted
            del indices[1]
        builder.add(indices[::-1], count * period)
    return "; ".join(resolver.notes)


def _frame(pc: int, located: Located) -> Frame:
    name = located.name or (f"{located.module}+{located.offset:#x}" if located.module else f"{pc:#x}")
    return Frame(name, side=NATIVE, module=located.module)
