"""Where the records of a VLOG begin, how deep each lies, and what it opens or closes. Pure; one thread at a time (a
reader thread while a log is long, else the UI thread).

One row per record. Its depth counts the TABs in front (PyLayers, nested backwards) and what is open around it: an API
call from ``Running…`` to ``Finish…`` (the latter is the last one inside), a backward from Start to Finish, a node from
its ``Preparing`` to the next one's. A TAB inside a node, a call or a PyLayer is the same step as that, not a second
one.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field

from adbg.engine.glog import (
    DUMP,
    ROW_BACKWARD,
    ROW_CALL,
    ROW_DUMP,
    ROW_FOREIGN,
    ROW_NODE,
    ROW_PLAIN,
    ROW_PYLAYER,
    ROWS,
)  # fmt: skip

INFO, WARNING, ERROR, FATAL = range(4)  # low four bits of a kind
FOREIGN, NOTE = 8, 9
KIND = 0x0F
BACKWARD, NODE, CALL, PYLAYER = 0x10, 0x20, 0x40, 0x80  # the record begins one
DEEPEST = 100
_PART = 1 << 20  # bytes; the rest of a longer record is another row
_SEVERITIES = {b"I": INFO, b"W": WARNING, b"E": ERROR, b"F": FATAL}

_LOOSE = re.compile(rb"\n(?=[^\s\n])")


@dataclass(slots=True)
class Batch:
    """Rows in order: byte offsets of their first character, depths, kinds."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    depths: bytearray = field(default_factory=bytearray)
    kinds: bytearray = field(default_factory=bytearray)

    def add(self, offset: int, depth: int, kind: int) -> None:
        self.offsets.append(offset)
        self.depths.append(depth)
        self.kinds.append(kind)


class Indexer:
    """Feed bytes in order, cut anywhere; each feed returns the rows that begin in the complete lines."""

    def __init__(self) -> None:
        self._rest = b"\n"  # as if a line ended before the first byte
        self._base = -1  # offset of the first byte of _rest
        self._open: list[tuple[int, int, bytes]] = []  # (tabs, what, name)
        self._tabs = 0
        self._depth = 0  # of a plain record with _tabs
        self._loose = True  # no record is open: each line is a row
        self._last = 0  # offset of the last row
        self._told = False  # the innermost call had its Debug Info: some (multiply) have no Finish behind it
        self.backwards = 0  # begun so far

    @property
    def depth(self) -> int:
        """Of a plain record that came now."""
        return self._depth

    @property
    def waiting(self) -> int:
        """Bytes of the line that has no end yet."""
        return len(self._rest) - 1

    def feed(self, data: bytes) -> Batch:
        """Rows that begin in what is complete now."""
        batch = Batch()
        data = self._rest + data
        end = data.rfind(b"\n")
        whole = _before_open_head(data, end)
        if whole <= 0:
            self._rest = data
            return batch
        self._rows(batch, data, whole)
        self._rest = data[whole:]
        self._base += whole
        return batch

    def flush(self) -> Batch:
        """Rows of what waits for more, when nothing came for a while; a last line without its end stays away."""
        batch = Batch()
        end = self._rest.rfind(b"\n")
        if end > 0:
            self._rows(batch, self._rest, end)
            self._rest = self._rest[end:]
            self._base += end
        return batch

    def _rows(self, batch: Batch, data: bytes, end: int) -> None:
        """Rows whose newline in front is in data[:end]; their first lines are complete."""
        base, offsets, depths, kinds = self._base, batch.offsets, batch.depths, batch.kinds
        severities, plain = _SEVERITIES, INFO
        position = 0
        for found in ROWS.finditer(data, 0, end):
            start = found.start()
            if self._loose and start > position:
                self._lines(batch, data, position, start)
            position = found.end()
            group = found.lastindex
            if group == ROW_FOREIGN:
                self._stray(batch, base + start + 1, found[ROW_FOREIGN])
                continue
            self._loose = False
            tabs = found.end(1) - found.start(1)
            kind = severities[found[2]]
            if group == ROW_PLAIN and tabs == self._tabs and not self._told:
                depth = self._depth
            else:
                depth, kind = self._placed(found, tabs, kind)
            offsets.append(base + start + 1)
            depths.append(depth)
            kinds.append(kind if kind else plain)
        if offsets:
            self._last = offsets[-1]
        if self._loose and end > position:
            self._lines(batch, data, position, end)
        elif base + end - self._last > _PART:
            self._last = base + data.rfind(b"\n", 0, end) + 1
            batch.add(self._last, min(self._depth + 1, DEEPEST), FOREIGN)

    def _lines(self, batch: Batch, data: bytes, start: int, end: int) -> None:
        """Text outside records: a row for each line that is not indented."""
        for found in _LOOSE.finditer(data, start, end):
            batch.add(self._base + found.start() + 1, 0, FOREIGN)
        if batch.offsets:
            self._last = batch.offsets[-1]

    def _stray(self, batch: Batch, offset: int, text: bytes) -> None:
        """Python's and Paddle's own output between records."""
        trace = text.startswith(b"Traceback")
        if trace:  # what was open did not finish
            self._open.clear()
            self._told = False
            self._tabs = self._depth = 0
        self._loose = not trace
        batch.add(offset, min(self._depth, DEEPEST), (ERROR if trace else WARNING if b"Warning" in text else FOREIGN))

    def _placed(self, found: re.Match[bytes], tabs: int, kind: int) -> tuple[int, int]:
        """Depth and kind of a record that may open or close something."""
        opened = self._open
        while opened and (opened[-1][0] > tabs or (opened[-1][1] == PYLAYER and opened[-1][0] == tabs)):
            opened.pop()
        group = found.lastindex
        if self._told:
            self._told = False
            if opened and not (group == ROW_CALL and found[3] == b"Finish" and opened[-1][2] == found[4]):
                opened.pop()
        begins, name = 0, b""
        depth = -1
        if group == ROW_CALL:
            if found[3] == b"Running":
                begins, name = CALL, found[4]
            else:
                depth = self._closed(tabs, CALL, found[4])
        elif group == ROW_BACKWARD:
            self._closed(tabs, NODE)
            if found[5] == b"Start":
                self._closed(tabs, BACKWARD)
                begins = BACKWARD
                self.backwards += 1
            else:
                depth = self._closed(tabs, BACKWARD)
        elif group == ROW_NODE:
            self._closed(tabs, NODE)
            begins = NODE
        elif group == ROW_PYLAYER:
            begins = PYLAYER
        elif group == ROW_DUMP and opened and opened[-1][:2] == (tabs, CALL):
            called = opened[-1][2].rpartition(b" ")[2]
            self._told = found[8].startswith(called) and found[8][len(called) :].isdigit()
        if depth < 0:
            depth = self._depth_at(tabs)
        if begins:
            opened.append((tabs, begins, name))
            if len(opened) > DEEPEST:  # what never ends must not slow down what follows
                del opened[0]
        self._tabs, self._depth = tabs, self._depth_at(tabs)
        return depth, kind | begins

    def _closed(self, tabs: int, what: int, name: bytes = b"") -> int:
        """End the innermost such thing; returns the depth of what is inside, -1 when there is none."""
        for at in range(len(self._open) - 1, -1, -1):
            opener = self._open[at]
            if opener[0] != tabs:
                break
            if opener[1:] == (what, name):
                del self._open[at + 1 :]
                depth = self._depth_at(tabs)
                del self._open[at]
                return depth
            if what == NODE and opener[1] == BACKWARD:
                break  # a node of the backward around
        return -1

    def _depth_at(self, tabs: int) -> int:
        if not self._open:
            return min(tabs, DEEPEST)
        counts: dict[int, int] = {}
        for level, _, _ in self._open:
            counts[level] = counts.get(level, 0) + 1
        total = tabs - sum(1 for level in counts if level < tabs) + sum(counts.values())
        return min(total, DEEPEST)


def _before_open_head(data: bytes, end: int) -> int:
    """Where to cut: before a head whose marker stands on a line that has not come yet (Debug Info names itself two
    lines below it), else at the newline at ``end``."""
    line = end
    for lines in (1, 2):
        start = data.rfind(b"\n", 0, line)
        if start < 0 or line - start > 200:
            break
        if data[start:line].rstrip(b" ").endswith(b"]") and (lines == 1 or DUMP.encode() in data[line:end]):
            return start
        line = start
    return end
