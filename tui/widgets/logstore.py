"""A growing log file by line: offsets, depths and kinds, read on demand. Pure, owned by one thread; nothing is kept but
10 bytes a line.

The file is glog's text (``engine/vlog.py`` has the grammar): TABs in front are the nesting, a line that begins no
record belongs to the record before it and lies one level deeper. What the front end itself has to say (stops, traces)
is interleaved where it came in.
"""

from __future__ import annotations

import contextlib
import os
import re
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_RECORD = re.compile(rb"(\t*)([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([^\s:]+):(\d+)\] ?")
_TEXT = re.compile(r"\t*([IWEF])\d{4} \d\d:(\d\d:\d\d\.\d{3})\d* +(\d+) ([^\s:]+):(\d+)\] ?(.*)", re.DOTALL)
_CHUNK = 1 << 20
_LONGEST = 4000  # bytes of a line that are ever shown
_CACHED = 2000
_FOREIGN, _NOTE = 8, 9  # kinds beside the severities
_KINDS = {b"I": 0, b"W": 1, b"E": 2, b"F": 3}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, taken apart. ``level`` is the VLOG level where adbg wrote the record, else the severity's letter; ""
    for foreign text, "■" for a note of the front end. ``time`` is "54:27.615"."""

    time: str
    level: str
    text: str
    where: str = ""


class LogStore:
    """Lines of ``path`` as far as ``poll`` has read, and notes between them."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self._fd = -1
        self._read = 0  # bytes taken in
        self._rest = b""
        self._offsets = array("q")  # of a note: -1 - its number
        self.depths = array("B")
        self._kinds = array("B")
        self._notes: list[LogLine] = []
        self._cache: OrderedDict[int, LogLine] = OrderedDict()
        self._depth = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def poll(self, budget: int = 4 * _CHUNK) -> int:
        """Take in what was appended, at most ``budget`` bytes; returns the number of new lines. A file that is not
        there is empty."""
        if not self.path:
            return 0
        before = len(self)
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return 0
        while budget > 0:
            with contextlib.suppress(OSError):
                data = os.pread(self._fd, _CHUNK, self._read)
                if data:
                    self._take(data)
                    budget -= len(data)
                    continue
            break
        return len(self) - before

    def _take(self, data: bytes) -> None:
        start = self._read - len(self._rest)
        self._read += len(data)
        data = self._rest + data
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            self._line(data[position : min(end, position + 300)], start + position)
            position = end + 1
        self._rest = data[position:]

    def _line(self, head: bytes, offset: int) -> None:
        found = _RECORD.match(head)
        if found:
            self._depth = min(len(found[1]), 255)
            kind, depth = _KINDS[found[2]], self._depth
        else:
            kind, depth = _FOREIGN, min(self._depth + 1, 255) if len(self) else 0
        self._offsets.append(offset)
        self.depths.append(depth)
        self._kinds.append(kind)

    def note(self, text: str, time: str) -> None:
        """A line of the front end, behind what was read so far."""
        self._notes.append(LogLine(time, "■", text))
        self._offsets.append(-len(self._notes))
        self.depths.append(self._depth)
        self._kinds.append(_NOTE)

    def line(self, row: int) -> LogLine:
        """Line ``row`` (0 <= row < len). Costs one pread, cached."""
        offset = self._offsets[row]
        if offset < 0:
            return self._notes[-offset - 1]
        known = self._cache.get(row)
        if known is not None:
            self._cache.move_to_end(row)
            return known
        line = _taken_apart(self.raw(row))
        self._cache[row] = line
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return line

    def raw(self, row: int) -> str:
        """The text as it stands in the file, without its newline, at most 4,000 bytes of it."""
        offset = self._offsets[row]
        if offset < 0:
            return self._notes[-offset - 1].text
        try:
            data = os.pread(self._fd, _LONGEST, offset)
        except OSError:
            return ""
        return data.split(b"\n", 1)[0].decode("utf-8", "replace")

    def alarming(self, row: int) -> bool:
        """A warning or worse."""
        return self._kinds[row] in (1, 2, 3)

    def has_children(self, row: int) -> bool:
        return row + 1 < len(self) and self.depths[row + 1] > self.depths[row]

    def end_of(self, row: int) -> int:
        """First row behind ``row`` that does not lie below it."""
        depth = self.depths[row]
        end = row + 1
        while end < len(self) and self.depths[end] > depth:
            end += 1
        return end

    def shown(self, folded: set[int], keep: Callable[[str], bool] | None, context: int = 0) -> array[int] | None:
        """Rows that have a line when the subtrees of ``folded`` are hidden and only lines that ``keep`` likes (with
        ``context`` lines around) stay; None means all. Reads the whole file when it filters."""
        if not folded and keep is None:
            return None
        wanted: bytearray | None = None
        if keep is not None:
            wanted = bytearray(len(self))
            for row in range(len(self)):
                if keep(self.raw(row)):
                    for near in range(max(row - context, 0), min(row + context + 1, len(self))):
                        wanted[near] = 1
        rows: array[int] = array("q")
        row, size = 0, len(self)
        while row < size:
            if wanted is None or wanted[row]:
                rows.append(row)
            row = self.end_of(row) if row in folded else row + 1
        return rows


def _taken_apart(text: str) -> LogLine:
    found = _TEXT.match(text)
    if not found:
        return LogLine("", "", text.expandtabs(4))
    severity, time, _, file, line, rest = found.groups()
    native = file.endswith((".cc", ".cpp", ".cu", ".h", ".hpp"))
    level = severity if severity != "I" or native or int(line) > 99 else line if int(line) else "I"
    return LogLine(time, level, rest.expandtabs(4), f"{file}:{line}" if native else file)
