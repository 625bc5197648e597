"""A growing log file by record: offsets, depths and kinds (10 bytes a record), text read on demand. Owned by the UI
thread; a long backlog is indexed, and a gzipped file unpacked, by a thread of its own that only hands over batches.

What the front end itself has to say (stops, traces) is interleaved where it came in.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import re
import tempfile
import threading
import time
import zlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from adbg.engine.glog import Record, heads, parse
from adbg.tui.app.log.index import BACKWARD, ERROR, FATAL, KIND, NOTE, WARNING, Batch, Indexer
from adbg.tui.app.log.sought import REWORDED, Sought
from adbg.tui.app.log.summary import is_block, summary
from adbg.tui.text.gunzip import MAGIC, unpacked

CHUNK = 1 << 18
PIECE = 1 << 16  # bytes between two looks at the clock of what runs on the UI thread: 0.2 ms of a plain pattern
BUDGET = 0.008  # seconds of indexing in one poll on the UI thread
MOST_ROWS = 10_000_000  # 100 MB of index; the older half goes, and is counted
_BACKLOG = 2 << 20  # bytes behind which the reader thread indexes: 20,000 records, some 50 ms
_LONGEST = 1 << 16  # bytes of a record that are ever shown
_CACHED = 2000
_ALARMS = bytes(1 if kind & KIND in (WARNING, ERROR, FATAL) else 0 for kind in range(256))
_BACKWARDS = bytes(1 if kind & BACKWARD else 0 for kind in range(256))


@dataclass(frozen=True, slots=True)
class LogLine:
    """A record in one line. ``level`` is the VLOG level where it is known, else the severity's letter; "" for foreign
    text, "■" for a note of the front end. ``time`` is "54:27.615". ``block``: there is more text than this."""

    time: str
    level: str
    text: str
    where: str = ""
    thread: int = 0
    block: bool = False


class LogStore:
    """Records of ``path`` as far as ``poll`` has read, and notes between them.

    Attributes:
        depths, kinds: one byte a row (``logindex`` has the bits).
        dropped: rows that were given up for memory; row numbers count without them.
        error: why the file cannot be read (to its end), "" when it can.
    """

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.dropped = 0
        self.error = ""
        self.unpacking = False
        self.unpacked = False  # the file is gzipped
        self._unpacker: threading.Thread | None = None
        self._fd = -1
        self._read = 0  # bytes taken in
        self._size = 0
        self._ready: deque[tuple[Batch, int]] = deque()  # of the reader thread: rows, and bytes read with them
        self._reader: threading.Thread | None = None
        self._closed = False
        self._clear()

    def _clear(self) -> None:
        self._indexer = Indexer()
        self._offsets: array[int] = array("q")
        self.depths = bytearray()
        self.kinds = bytearray()
        self._notes: dict[int, LogLine] = {}
        self._cache: OrderedDict[int, tuple[Record, LogLine]] = OrderedDict()
        self._read = 0

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def behind(self) -> int:
        """Bytes in the file that are not indexed yet."""
        return max(self._size - self._read, 0)

    @property
    def size(self) -> int:
        """Bytes of the (unpacked) file as far as known."""
        return self._size

    def close(self) -> None:
        """Give the file back; a thread that reads it ends soon."""
        self._closed = True
        for thread in (self._reader, self._unpacker):
            if thread is not None:
                thread.join(2)
        if self._fd >= 0 and (self._unpacker is None or not self._unpacker.is_alive()):
            os.close(self._fd)
            self._fd = -1

    # ---- reading

    def poll(self, budget: float = BUDGET) -> int:
        """Take in what was appended, for at most ``budget`` seconds; returns the number of new rows. A file that is not
        there is empty; one that shrank is read again."""
        if self._fd < 0 and not self._opened():
            return 0
        before = len(self) + self.dropped
        deadline = time.monotonic() + budget
        # asked before the file is read: when unpacking is over, this poll sees all that was unpacked
        self.unpacking = self._unpacker is not None and self._unpacker.is_alive()
        with contextlib.suppress(OSError):
            self._size = os.fstat(self._fd).st_size
        if self._reader is not None:
            self._adopt(deadline)
        elif self._size < self._read:
            self._clear()
            before = 0
        elif self._size - self._read > _BACKLOG:
            self._reader = threading.Thread(target=self._read_on, name="adbg-log", daemon=True)
            self._reader.start()
        else:
            self._read_here(deadline)
        if len(self) > MOST_ROWS:
            self._drop(len(self) - MOST_ROWS // 2)
        return len(self) + self.dropped - before

    def _opened(self) -> bool:
        if not self.path or self._closed:
            return False
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            packed = os.pread(self._fd, 2, 0) == MAGIC
        except OSError as error:
            self.error = error.strerror or str(error)
            return False
        self.error = ""
        if packed:
            source, self._fd = self._fd, _nameless_file()
            self.unpacking = self.unpacked = True
            self._unpacker = threading.Thread(target=self._unpack, args=(source,), name="adbg-gunzip", daemon=True)
            self._unpacker.start()
        return True

    def _read_here(self, deadline: float) -> None:
        grew = False
        while True:
            data = self._bytes(self._read, CHUNK)
            if not data:
                if not grew:
                    self._add(self._indexer.flush())
                return
            grew = True
            self._read += len(data)
            self._add(self._indexer.feed(data))
            if time.monotonic() > deadline:
                return

    def _read_on(self) -> None:
        """The reader thread: until it has caught up."""
        position = self._read
        while not self._closed:
            data = self._bytes(position, CHUNK)
            if not data:
                break
            position += len(data)
            self._ready.append((self._indexer.feed(data), position))
            while len(self._ready) > 64 and not self._closed:  # 16 MB ahead of the screen are enough
                time.sleep(0.005)

    def _adopt(self, deadline: float) -> None:
        reader = self._reader
        ended = reader is not None and not reader.is_alive()
        while self._ready:
            batch, self._read = self._ready.popleft()
            self._add(batch)
            if time.monotonic() > deadline:
                return
        if ended:
            self._reader = None

    def _add(self, batch: Batch) -> None:
        self._offsets += batch.offsets
        self.depths += batch.depths
        self.kinds += batch.kinds

    def _unpack(self, source: int) -> None:
        try:
            with open(source, "rb") as packed:
                for data in unpacked(packed):
                    if self._closed:
                        break
                    while data:
                        data = data[os.write(self._fd, data) :]
        except EOFError:
            self.error = "truncated: the end of the file is missing"
        except (OSError, zlib.error) as error:
            self.error = f"unpacking ended early: {error}"

    def _bytes(self, start: int, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, start)
        except OSError:
            return b""

    def _drop(self, rows: int) -> None:
        del self._offsets[:rows], self.depths[:rows], self.kinds[:rows]
        self._notes = {row - rows: note for row, note in self._notes.items() if row >= rows}
        self._cache.clear()
        self.dropped += rows

    def note(self, text: str, time: str) -> None:
        """A line of the front end, behind what was written so far; a log that is long behind gets it where it is."""
        self.poll()
        if self._reader is None and self._fd >= 0 and not self.behind:
            self._add(self._indexer.flush())  # the last record is complete, though none has followed it yet
        self._notes[len(self)] = LogLine(time, "■", text)
        self._offsets.append(max(self._read - self._indexer.waiting, 0) if self._reader is None else self._read)
        self.depths.append(self._indexer.depth)
        self.kinds.append(NOTE)

    # ---- rows

    def line(self, row: int) -> LogLine:
        """Row ``row`` (0 <= row < len) in one line. Costs one pread and 20 us, cached."""
        return self._notes[row] if row in self._notes else self._known(row)[1]

    def record(self, row: int) -> Record:
        """The record, its text taken apart; a note is foreign text."""
        if row in self._notes:
            return Record(0, "", "", 0, "", 0, self._notes[row].text)
        return self._known(row)[0]

    def _known(self, row: int) -> tuple[Record, LogLine]:
        known = self._cache.get(row)
        if known is not None:
            self._cache.move_to_end(row)
            return known
        text = self.raw(row)
        known = _taken_apart(text)
        if row + 1 < len(self):  # the last one may grow
            self._cache[row] = known
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return known

    def raw(self, row: int) -> str:
        """The text as it stands in the file, with its continuation lines, at most 64 KiB of it."""
        if row in self._notes:
            return self._notes[row].text
        start = self._offsets[row]
        end = self._offsets[row + 1] if row + 1 < len(self) else start + _LONGEST
        return self._bytes(start, min(max(end - start, 0), _LONGEST)).decode("utf-8", "replace").rstrip("\n")

    def block(self, row: int) -> list[str]:
        """The lines of the whole text, TABs of the nesting taken off."""
        record = self.record(row)
        lines = [record.text, *record.continuation]
        return [line.expandtabs(4) for line in (lines if lines[0].strip() else lines[1:])]

    # ---- places

    def end_of(self, row: int) -> int:
        """First row behind ``row`` that does not lie below it."""
        depth = self.depths[row]
        found = re.compile(b"[\\x00-\\x%02x]" % depth).search(self.depths, row + 1)
        return found.start() if found else len(self)

    def has_children(self, row: int) -> bool:
        return row + 1 < len(self) and self.depths[row + 1] > self.depths[row]

    def holder_of(self, row: int) -> int:
        """The row that ``row`` lies below; -1 for none."""
        depth = self.depths[row]
        while row > 0 and depth:
            start = max(row - 65536, 0)
            at = self.depths[start:row].translate(bytes(level < depth for level in range(256))).rfind(1)
            if at >= 0:
                return start + at
            row = start
        return -1

    def alarming(self, row: int) -> bool:
        """A warning or worse."""
        return bool(_ALARMS[self.kinds[row]])

    def next_alarm(self, row: int, step: int, among: array[int] | None = None) -> int:
        """The next such row in a direction, around the end, of all or of some rows; -1 when there is none."""
        marks = self.kinds.translate(_ALARMS)
        for _ in range(marks.count(1)):
            row = _next(marks, row, step)
            if among is None or contains(among, row):
                return row
        return -1

    def backward_of(self, row: int) -> int:
        """The row that begins the backward around ``row``; -1 outside."""
        while row >= 0 and not self.kinds[row] & BACKWARD:
            row = self.holder_of(row)
        return row

    def last_backward(self) -> int:
        """The innermost backward that has not ended, else the last; -1 when there was none."""
        if not len(self):
            return -1
        around = self.backward_of(self.holder_of(len(self) - 1)) if self.depths[-1] else -1
        if around >= 0:
            return around
        return self.kinds.translate(_BACKWARDS).rfind(1)

    def next_backward(self, row: int) -> int:
        """The first backward that begins behind ``row``; -1 when there is none."""
        return self.kinds.translate(_BACKWARDS).find(1, row)

    def piece_end(self, start: int, stop: int, size: int = CHUNK) -> int:
        """Row up to which one read of some ``size`` bytes from row ``start`` on goes."""
        return min(max(bisect.bisect_right(self._offsets, self._offsets[start] + size), start + 1), stop)

    def piece_start(self, start: int, stop: int, size: int = CHUNK) -> int:
        """Row from which such a read goes that ends before row ``stop``."""
        return max(min(bisect.bisect_left(self._offsets, self._offsets[stop - 1] - size), stop - 1), start)

    def heads(self, low: int, high: int) -> dict[int, Record]:
        """Rows of low..high-1 and their records without continuation lines; notes and foreign text are left out."""
        first = self._offsets[low]
        end = self._offsets[high] if high < len(self) else self._offsets[high - 1] + _LONGEST
        found = heads(self._bytes(first, end - first), first)
        rows = (row for row in range(low, high) if row not in self._notes)
        return {row: found[at] for row in rows if (at := self._offsets[row]) in found}

    def matching(self, sought: Sought, low: int, high: int) -> list[int]:
        """Rows of low..high-1 whose text matches, as it is written or as it is shown."""
        offsets, first = self._offsets, self._offsets[low]
        end = offsets[high] if high < len(self) else offsets[high - 1] + _LONGEST
        data = self._bytes(first, end - first)
        rows = set(_rows_with(sought.raw, data, offsets, low, high))
        for row in _rows_with(REWORDED, data, offsets, low, high):
            if row not in rows:
                start = offsets[row] - first
                record = data[start : offsets[row + 1] - first if row + 1 < high else start + _LONGEST]
                if sought.may_show(record) and sought.shown.search(self.line(row).text):
                    rows.add(row)
        noted = {row for row in self._notes if low <= row < high} if self._notes else set()
        rows -= noted
        rows |= {row for row in noted if sought.shown.search(self._notes[row].text)}
        return sorted(rows)


def _rows_with(pattern: re.Pattern[bytes], data: bytes, offsets: array[int], low: int, high: int) -> Iterator[int]:
    """Rows of low..high-1, which ``data`` holds, in which ``pattern`` is found."""
    first, last = offsets[low], -1
    for found in pattern.finditer(data):
        row = bisect.bisect_right(offsets, first + found.start(), low, high) - 1
        if row != last:
            last = row
            yield row


def contains(rows: array[int], row: int) -> bool:
    """``row`` is one of the ascending ``rows``."""
    at = bisect.bisect_left(rows, row)
    return at < len(rows) and rows[at] == row


def _next(marks: bytes | bytearray, row: int, step: int) -> int:
    if step > 0:
        at = marks.find(1, row + 1)
        return at if at >= 0 else marks.find(1, 0, row + 1)
    at = marks.rfind(1, 0, max(row, 0))
    return at if at >= 0 else marks.rfind(1, max(row, 0))


def _nameless_file() -> int:
    """A file that goes away with its descriptor."""
    file, path = tempfile.mkstemp(prefix="adbg-log-")
    os.unlink(path)
    return file


def _taken_apart(text: str) -> tuple[Record, LogLine]:
    records = parse(text)
    record = records[0] if records else Record(0, "", "", 0, "", 0, "")
    if len(records) > 1:  # the store is more generous with what belongs together than the parser
        more = [line for r in records[1:] for line in (r.text, *r.continuation)]
        record = record._replace(continuation=(*record.continuation, *more))
    if not record.severity:
        return record, LogLine("", "", record.text.expandtabs(4), block=bool(record.continuation))
    native = "." in record.file
    level = record.severity if record.severity != "I" else str(record.level) if record.level is not None else "I"
    where = f"{record.file}:{record.line}" if native else record.file
    clock = record.time[8:17]
    return record, LogLine(clock, level, summary(record).expandtabs(4), where, record.tid, is_block(record))
