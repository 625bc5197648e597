"""glog's text grammar: VLOG records read and written. Standard library only; pure, any thread.

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

HEAD = re.compile(rb"^(\t*)([IWEF])(\d{4} \d\d:\d\d:\d\d\.\d{6}) +(\d+) ([\w.\-]+):(\d+)\] ?([^\n]*)\n", re.MULTILINE)
_STRAY = rb"Traceback \(most recent call last\):|WARNING: Logging before |\[PRECISION\] |[^\s:]+:\d+: \w*Warning: "
FOREIGN = re.compile(rb"^(?:" + _STRAY + rb")", re.MULTILINE)
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
        return paddle_level(self.text or (self.continuation[0] if self.continuation else ""))


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
        for match in HEAD.finditer(text, self._scanned):
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
            self._open = HEAD.match(bytes(self._buffer[: head.end() - head.start()]))
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
        if body < end and (foreign := FOREIGN.search(text, body, end)):
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
    for match in HEAD.finditer(data):
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

# Where the rows of a log begin, and what each opens or closes; the text in front begins with a newline. The last group
# that matched (``lastindex``) says which: ROW_CALL ("Running" or "Finish" in group 3, its name in 4), ROW_BACKWARD
# ("Start" or "Finish" in 5), ROW_NODE (a node is about to run), ROW_PYLAYER (one begins), ROW_DUMP (of the call named
# in 8), ROW_FOREIGN (no record: group 9), else ROW_PLAIN. Groups 1 and 2 are TABs and severity.
ROW_PLAIN, ROW_CALL, ROW_BACKWARD, ROW_NODE, ROW_PYLAYER, ROW_DUMP, ROW_FOREIGN = 2, 4, 5, 6, 7, 8, 9
DUMP = "Forward Debug Info"
ROWS = re.compile(
    rb"\n(?:(\t*)([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.\-]+:\d+\] ?(?:"
    rb"(?:\n\t*)?=+(?:(Running|Finish)_((?:AD|C\+\+)_API\w*: [\w.]+)=|RunBackward: (Start|Finish) B)"
    rb"|[\w:<>.]+\((?:#\d+|0x[0-9a-f]+)\) (Preparing)"
    rb"|(?:\w+:Running PyLayer Apply|Running PyLayer \w)()"
    rb"|(?:\n\t*)?" + DUMP.encode() + rb" \{\n\t*API_Name: ([\w.]+)"
    rb")?|(" + _STRAY + rb"))"
)
_NODE = re.compile(r"(?P<name>[\w:<>.]+)\((?:#(?P<index>\d+)|(?P<pointer>0x[0-9a-f]+))\)")

_MADE = re.compile(r"(?:\w+:)?\s*Create (?:grad )?node (?P<name>[\w:<>.]+) addr (?P<pointer>0x[0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class NodeSaid:
    """The node that a record is about: ``index`` in the backward, 0 where the log has none; ``text`` is how the log
    tells it from others of its name, ``pointer`` ("0x55d0...") its address."""

    name: str
    index: int
    text: str
    pointer: str = ""


def node_said(text: str) -> NodeSaid | None:
    """Of a record's text; None when it is about something else."""
    found = _NODE.match(text)
    return NodeSaid(found["name"], int(found["index"] or 0), found[0], found["pointer"] or "") if found else None


def node_made(text: str) -> NodeSaid | None:
    """The node that a record of the forward tells the making of; None when it is about something else."""
    found = _MADE.match(text)
    return NodeSaid(found["name"], 0, f"{found['name']}({found['pointer']})", found["pointer"]) if found else None


# Paddle's records of several lines (3.3.1, levels 3 to 6): a tensor's own lines are indented by one TAB, or two inside
# TensorInfo; deeper ones are of its gradient and its node.
API_MARKER = re.compile(r"=+(Running|Finish)_(AD_API_GRAD|AD_API_Grad|AD_API|C\+\+_API\w*): ([\w.]+)=+")
RULER = re.compile(r"^=+(.*?)\s*=+$")
LAYER_STACK = "PyLayer forward call stack:"
STACK_FRAME = re.compile(r'File "([^"\n]*)", line (\d+), in (.*)')  # the innermost one is the last
NODE_INPUTS = "{ Input: ["
KERNEL_INPUTS, KERNEL_OUTPUTS, KERNEL_ATTRIBUTES = '{"input":[', '"output":', '"attribute":'
KERNEL_DTYPE = re.compile(r"dtype: ([\w.]+)")
TENSOR_FIELD = re.compile(
    r"^\( (?P<var>\w+) ,|^\t(?P<name>Name): |^\t{1,2}Dtype: (?P<dtype>[\w.]+)|^\t{1,2}Shape: (?P<shape>.*?),?\s*$"
    r"|^\t(?P<unknown>TensorInfo: \{ Unknown)|(?P<output>^ ?Output: ?\[)",
    re.MULTILINE,
)

# Paddle 3.3.1: the level at which a wording first appeared in logs taken at levels 3, 4, 5 and 6; of two wordings the
# lower level counts. One expression for the beginning and one for what stands inside: 1 us a record, each wording by
# itself took 4.
_BEGINS = re.compile(
    r"(?P<l3>Run in Backward|=+RunBackward: |RunBackward: Start_up_ops's size|=+(?:Running|Finish)_"
    r"|Forward Debug Info|Running Eager Backward Node|\w+:(?:Running|Finish|Create|PyLayer)|CopyOrAddTensor)"
    r"|(?P<l4>RunBackward: +(?:Create Value|Fill grad|Final hook|Update In)|Create node |GradNodeAccumulation Ptr"
    r"|type_name: )"
    r"|(?P<l5>RunBackward: |(?:Construct|Destruct) GradNodeAccumulation| No (?:Type|AMP)|Add Edges for slot)"
    r"|(?P<l6>gradnode_ptr = |Running Eager Final State API|Call eager_api)"
)
_INSIDE = re.compile(
    r" (?:(?P<l3>Preparing ?$)|(?P<l4>begin run |Found pending node: |API kernel key: |kernel: \{)"
    r"|(?P<l5>ref_cnt is: ))"
)


def paddle_level(text: str) -> int | None:
    """Of the text of a record of Paddle's, by its wording."""
    found = _BEGINS.match(text)
    level = int(found.lastgroup[1]) if found is not None and found.lastgroup else None
    if level != 3:
        for found in _INSIDE.finditer(text):
            inside = int(found.lastgroup[1]) if found.lastgroup else 6
            if level is None or inside < level:
                level = inside
    return level


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
