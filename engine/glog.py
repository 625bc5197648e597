"""glog's text grammar: VLOG records read and written. Pure, any thread.

::

    record = TAB* severity MMDD " " HH:MM:SS.uuuuuu " " tid " " file ":" line "] " text NL { continuation line NL }

TAB* is the nesting (PyLayer / nested backward) and stands before each continuation line too. The grammar was checked
on 34 logs of Paddle 3.3.1. Lines that belong to no record (Python warnings, tracebacks, prints of check_nan_inf) are
*foreign*. Records that adbg writes itself have no C++ source line: their file has no suffix, and the number behind it
is the level.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from adbg.engine.errors import CommandError

_HEAD = re.compile(rb"^(\t*)([IWEF])(\d{4} \d\d:\d\d:\d\d\.\d{6}) +(\d+) ([\w.\-]+):(\d+)\] ?([^\n]*)\n", re.MULTILINE)
_FOREIGN = re.compile(
    rb"^(?:Traceback \(most recent call last\):|WARNING: Logging before |\[PRECISION\] |[^\s:]+:\d+: \w*Warning: )",
    re.MULTILINE,
)
_PART = 1 << 20  # bytes; a longer record or foreign text is handed out in parts, so that memory stays bounded


class Record(NamedTuple):
    """One record. ``severity`` is I, W, E or F; "" marks foreign text (``text`` and ``continuation`` are its lines).

    ``offset`` and ``length`` are its bytes in the stream. ``time`` is "1121 00:54:27.615494". ``continuation`` lines
    come without the record's own TABs. A named tuple, not a frozen dataclass: a log has millions, and that one takes
    0.7 us to make, this 0.2.
    """

    indent: int
    severity: str
    time: str
    tid: int
    file: str
    line: int
    text: str
    continuation: tuple[str, ...] = ()
    offset: int = 0
    length: int = 0

    @property
    def level(self) -> int | None:
        """The VLOG level, where it is known: always for adbg's own records, by wording for Paddle's; 0 for W, E, F."""
        if not self.severity:
            return None
        if self.severity != "I":
            return 0
        if "." not in self.file:
            return self.line
        return _paddle_level(self.text or (self.continuation[0] if self.continuation else ""))


class Parser:
    """Incremental: feed bytes as they come, cut anywhere. Not thread-safe."""

    def __init__(self, offset: int = 0) -> None:
        """``offset``: of the first byte fed, when reading starts inside a file."""
        self._buffer = bytearray()
        self._base = offset  # stream offset of the buffer's first byte, which begins the open record
        self._scanned = 0  # heads before this position of the buffer are known
        self._open: re.Match[bytes] | None = None  # head of the open record; None: it is foreign

    def feed(self, data: bytes) -> list[Record]:
        """Records that are complete now (a record is complete when the next one begins)."""
        self._buffer += data
        end = self._buffer.rfind(b"\n", self._scanned) + 1
        if end <= self._scanned:
            return []
        text = bytes(memoryview(self._buffer)[:end])
        records: list[Record] = []
        start, head = 0, self._open
        for match in _HEAD.finditer(text, self._scanned):
            if match.start() > start:
                self._emit(records, text, start, match.start(), head)
            start, head = match.start(), match
        if end - start > _PART:
            self._emit(records, text, start, end, head)
            start, head = end, None
        self._open = None
        if start:
            del self._buffer[:start]
            self._base += start
        if head is not None:
            self._open = _HEAD.match(bytes(self._buffer[: head.end() - head.start()]))
        self._scanned = end - start
        return records

    def flush(self) -> list[Record]:
        """The end of the stream: the rest, an unfinished last line included."""
        unfinished = bool(self._buffer) and not self._buffer.endswith(b"\n")
        records = self.feed(b"\n") if unfinished else []
        if self._buffer:
            self._emit(records, bytes(self._buffer), 0, len(self._buffer), self._open)
        if unfinished and records:
            records[-1] = records[-1]._replace(length=records[-1].length - 1)
        self._base += len(self._buffer) - unfinished
        self._buffer.clear()
        self._open, self._scanned = None, 0
        return records

    def pending(self) -> list[Record]:
        """What is read but not complete yet, as it stands: to show the newest record of a log that is still written."""
        text = bytes(self._buffer[: self._scanned])
        records: list[Record] = []
        if text:
            self._emit(records, text, 0, len(text), self._open)
        return records

    def _emit(self, records: list[Record], text: bytes, start: int, end: int, head: re.Match[bytes] | None) -> None:
        """The record of ``text[start:end]``, and the foreign text that follows it, if any."""
        offset = self._base + start
        if head is None:
            records.append(_foreign(text[start:end], offset))
            return
        tabs, severity, when, tid, file, line, first = head.groups()
        body = start + head.end() - head.start()
        stop, rest = end, None
        if body < end and (foreign := _FOREIGN.search(text, body, end)):
            stop = foreign.start()
            rest = _foreign(text[stop:end], self._base + stop)
        lines = _lines(text[body:stop], len(tabs)) if body < stop else ()
        shown = first.decode("utf-8", "replace").rstrip("\r")
        records.append(
            Record(
                len(tabs),
                severity.decode(),
                when.decode(),
                int(tid),
                file.decode(),
                int(line),
                shown,
                lines,
                offset,
                stop - start,
            )
        )
        if rest is not None:
            records.append(rest)


def _foreign(data: bytes, offset: int) -> Record:
    lines = _lines(data, 0)
    return Record(0, "", "", 0, "", 0, lines[0] if lines else "", lines[1:], offset, len(data))


def _lines(data: bytes, indent: int) -> tuple[str, ...]:
    """Lines without their ends and without ``indent`` TABs."""
    lines = data.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    tabs = "\t" * indent
    return tuple(line.rstrip("\r").removeprefix(tabs) for line in lines)


def parse(text: str | bytes) -> list[Record]:
    """All records of a whole log."""
    parser = Parser()
    return parser.feed(text.encode() if isinstance(text, str) else text) + parser.flush()


def heads(data: bytes, offset: int = 0) -> dict[int, Record]:
    """Records of ``data`` without their continuation lines, by where they begin; ``offset`` is that of the first byte.
    An empty text is that of the next line. 2 us a record, a third of ``parse``."""
    found: dict[int, Record] = {}
    for match in _HEAD.finditer(data):
        tabs, severity, when, tid, file, line, text = match.groups()
        if not text:
            text = data[match.end() : data.find(b"\n", match.end()) + 1]
        at = offset + match.start()
        found[at] = Record(
            len(tabs),
            severity.decode(),
            when.decode(),
            int(tid),
            file.decode(),
            int(line),
            text.decode("utf-8", "replace").strip("\t\r\n"),
            (),
            at,
        )
    return found


# ------------------------------------------------------------------ what a record says


@dataclass(frozen=True, slots=True)
class Topic:
    """What a record means for folding: ``kind`` is one of "backward_begin", "backward_end", "node" (a node is about to
    run), "node_more" (more about it), "pylayer_begin", "pylayer_end", "api_begin", "api_end".

    ``name`` is the node's, op's or PyLayer's. ``index`` (adbg's records) or ``pointer`` (Paddle's) tells nodes of one
    name apart.
    """

    kind: str
    name: str = ""
    index: int | None = None
    pointer: str = ""


_NODE = r"(?P<name>[\w:<>.]+)\((?:#(?P<index>\d+)|(?P<pointer>0x[0-9a-f]+))\)"
_TOPICS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("node", _NODE + r" Preparing"),
        ("node_more", _NODE + r" "),
        ("backward_begin", r"=+RunBackward: Start Backward"),
        ("backward_end", r"=+RunBackward: Finish Backward"),
        ("pylayer_begin", r"Running PyLayer (?P<name>\w+)"),
        ("pylayer_end", r"Finish PyLayer (?P<name>\w+)"),
        ("pylayer_begin", r"(?P<name>\w+):Running PyLayer Apply"),
        ("pylayer_end", r"(?P<name>\w+):Finish PyLayer Apply"),
        ("api_begin", r"=+Running_(?:AD|C\+\+)_API\w*: (?P<name>\w+)="),
        ("api_end", r"=+Finish_(?:AD|C\+\+)_API\w*: (?P<name>\w+)="),
    )
)


def topic(record: Record) -> Topic | None:
    """What ``record`` says of the course of a backward; None when it is about something else."""
    text = record.text or (record.continuation[0] if record.continuation else "")
    for kind, pattern in _TOPICS:
        if match := pattern.match(text):
            groups = match.groupdict()
            index = groups.get("index")
            return Topic(kind, groups.get("name") or "", int(index) if index else None, groups.get("pointer") or "")
    return None


_LEVELS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern), level)
    for pattern, level in (
        # Paddle 3.3.1: the level at which a wording first appeared in logs taken at levels 3, 4, 5 and 6.
        (r"Run in Backward|=+RunBackward: |RunBackward: Start_up_ops's size|.* Preparing ?$", 3),
        (r"=+(Running|Finish)_|Forward Debug Info|Running Eager Backward Node|\w+:(Running|Finish|Create|PyLayer)", 3),
        (r"CopyOrAddTensor", 3),
        (r".* begin run |.* Found pending node: |RunBackward: +(Create Value|Fill grad|Final hook|Update In)", 4),
        (r"Create node |.* API kernel key: |.* kernel: \{|GradNodeAccumulation Ptr|type_name: ", 4),
        (r".* ref_cnt is: |RunBackward: |(Construct|Destruct) GradNodeAccumulation| No (Type|AMP)", 5),
        (r"Add Edges for slot", 5),
        (r"gradnode_ptr = |Running Eager Final State API|Call eager_api", 6),
    )
)


def _paddle_level(text: str) -> int | None:
    for pattern, level in _LEVELS:
        if pattern.match(text):
            return level
    return None


# ------------------------------------------------------------------ writing

_stamp: tuple[int, str] = (-1, "")  # (second, its text): replaced as a whole, so threads cannot see half of it


def format_record(
    text: str,
    file: str,
    line: int,
    indent: int = 0,
    severity: str = "I",
    time_ns: int | None = None,
    tid: int | None = None,
) -> str:
    """One record with its newline, local time; further lines of ``text`` become continuation lines. 0.8 us."""
    global _stamp
    nanoseconds = time.time_ns() if time_ns is None else time_ns
    second, rest = divmod(nanoseconds, 1_000_000_000)
    known, stamp = _stamp
    if known != second:
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(second))
        _stamp = (second, stamp)
    thread = threading.get_native_id() if tid is None else tid
    tabs = "\t" * indent
    if "\n" in text:
        text = text.replace("\n", "\n" + tabs)
    return f"{tabs}{severity}{stamp}.{rest // 1000:06d} {thread} {file}:{line}] {text}\n"


def parse_levels(text: str) -> dict[str, int]:
    """ "6" -> {"*": 6}; "backward=6,nodes=5"; "off" -> {"*": 0}; "" -> {}. Raises CommandError."""
    levels: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.rpartition("=")
        level = "0" if value.lower() == "off" else value
        if not level.isdecimal() or int(level) > 10 or (equals and not name):
            raise CommandError(
                f"bad VLOG level {part!r}",
                "expected a level 0-10, off, or MODULE=LEVEL; example: vlog 4 or vlog backward=6,nodes=5",
            )
        levels[name or "*"] = int(level)
    return levels
