"""A million records as lines of text in some seconds: a record that is not wanted is not taken apart. Pure.

Of the parser's 6 us a record most goes into objects; here a record of one line costs 2, one that is not kept 1.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from adbg.engine.glog import DUMP, FOREIGN, HEAD, Record, paddle_level, parse

_MARKS = (b"Traceback", b"Warning: ", b"WARNING: Logging", b"[PRECISION]")
MOST = 1 << 22  # bytes of one record; what is longer is taken apart as it stands


@dataclass(frozen=True, slots=True)
class View:
    """What is shown. ``depth`` None folds nothing; ``level`` None keeps all; ``full``: all lines of a record."""

    depth: int | None = None
    level: int | None = None
    pattern: re.Pattern[str] | None = None
    full: bool = False

    def keeps(self, record: Record) -> bool:
        level = record.level
        if self.level is not None and level is not None and level > self.level:
            return False
        return self.pattern is None or any(map(self.pattern.search, (record.text, *record.continuation)))


class Folder:
    """Turns records into lines, counting what lies deeper than ``view.depth`` into one line."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.folded = 0
        self.indent = 0

    def lines(self, records: Iterable[Record]) -> Iterator[str]:
        view = self.view
        for record in records:
            if not view.keeps(record):
                continue
            if view.depth is not None and record.indent > view.depth and record.level != 0:
                self.folded += 1
                self.indent = view.depth
                continue
            yield from self.rest()
            yield from record_lines(record, view.full)

    def rest(self) -> Iterator[str]:
        """The line of what was folded so far."""
        if self.folded:
            yield f"{'':>16}  {'│ ' * self.indent}▸ {self.folded} record{'s' if self.folded > 1 else ''} deeper"
            self.folded = 0


class Scanner:
    """``feed`` it bytes cut anywhere; it gives the lines of the records that are complete."""

    def __init__(self, view: View) -> None:
        self.folder = Folder(view)
        self._rest = b""
        # ``^`` and ``$`` are those of each line
        pattern = view.pattern
        self._pattern = re.compile(pattern.pattern, pattern.flags | re.MULTILINE) if pattern is not None else None
        self._quick = _quick(pattern) if pattern is not None else None

    def feed(self, data: bytes) -> Iterator[str]:
        """Lines of all records but the last, which may go on."""
        data = self._rest + data
        heads = list(HEAD.finditer(data))
        end = heads.pop().start() if heads else 0
        if not end and len(data) >= MOST:
            end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        start = min(heads[0].start() if heads else end, end)
        if start:
            yield from self.folder.lines(parse(data[:start]))
        yield from self._records(data, heads, end)

    def close(self) -> Iterator[str]:
        """Lines of what is left."""
        yield from self.folder.lines(parse(self._rest))
        yield from self.folder.rest()
        self._rest = b""

    def _records(self, data: bytes, heads: list[re.Match[bytes]], end: int) -> Iterator[str]:
        view, lines, pattern, limit = self.folder.view, self.folder.lines, self._pattern, self.folder.view.level
        in_one_line = view.depth is None and not view.full
        ends = [*(head.start() for head in heads[1:]), end]
        for head, stop in self._worth_it(data, heads, ends):
            tabs, severity, when, _, file, line, first = head.groups()
            body = head.end()
            more = data[body:stop] if body < stop else b""
            if more and _may_be_foreign(more):
                yield from lines(parse(data[head.start() : stop]))
                continue
            text = first.decode("utf-8", "replace").rstrip("\r")
            if more and not text.strip():
                second, _, more = more.partition(b"\n")
                text = second.decode("utf-8", "replace").removeprefix("\t" * len(tabs)).rstrip()
            if limit is not None and (_level(severity, file, line, text) or 0) > limit:
                continue
            if pattern is not None and not pattern.search(text):
                # ``^`` and ``$`` are those of each line; the record's TABs in front of one are not text
                rest = b"\n" + more.rstrip(b"\n")
                if tabs:
                    rest = rest.replace(b"\n" + tabs, b"\n")
                if not more or not self._in_a_line(rest[1:].decode("utf-8", "replace")):
                    continue
            if not in_one_line:
                yield from lines(parse(data[head.start() : stop]))
                continue
            if not text.isprintable():
                text = _printable(text)
            if more:
                text = _in_one_line(text, more)
            level = _level(severity, file, line, text)
            mark = severity.decode() if level is None or severity != b"I" else level
            bars = "│ " * len(tabs) if tabs else ""
            yield f"{when[5:].decode():>15} {mark} {bars}{text}  ({file.decode()}:{line.decode()})"

    def _worth_it(
        self, data: bytes, heads: list[re.Match[bytes]], ends: list[int]
    ) -> Iterable[tuple[re.Match[bytes], int]]:
        """Records with their ends; only those in which the pattern is found, where that is known of many at once."""
        if self._quick is None or not data.isascii() or not heads:
            return zip(heads, ends)
        found = self._quick.finditer(data, heads[0].start(), ends[-1])
        rows = dict.fromkeys(bisect.bisect_right(ends, match.start()) for match in found)
        return [(heads[row], ends[row]) for row in rows if row < len(heads)]

    def _in_a_line(self, text: str) -> bool:
        """The pattern is found in one line of ``text``: not only across a line's end."""
        pattern = self._pattern
        return pattern is not None and pattern.search(text) is not None and any(map(pattern.search, text.split("\n")))


def _quick(pattern: re.Pattern[str]) -> re.Pattern[bytes] | None:
    """The same for the bytes of many records, where that means the same: it is ASCII, asks for no end of a line, and
    cannot match one."""
    text = pattern.pattern
    if not text.isascii() or re.search(r"[\^$]|\(\?|\\[AZsWDnrtvfxuUNB0-9]", text):
        return None
    return re.compile(text.encode(), pattern.flags & re.IGNORECASE)


def _level(severity: bytes, file: bytes, line: bytes, text: str) -> int | None:
    """As ``Record.level``."""
    return 0 if severity != b"I" else int(line) if b"." not in file else paddle_level(text)


def _may_be_foreign(more: bytes) -> bool:
    """Quick: the bytes are in the text at all."""
    return any(mark in more for mark in _MARKS) and FOREIGN.search(more) is not None


def record_lines(record: Record, full: bool = False) -> Iterator[str]:
    """ "00:54:27.615494 4  │ apply MmBackward0  (nodes:4)", with ``full`` then its continuation lines. A record whose
    message begins on its second line has it on the first here. Foreign text has all its lines."""
    more = [_printable(text) for text in record.continuation]
    text = _printable(record.text)
    if not record.severity:
        yield text
        yield from more
        return
    if not text.strip() and more:
        text = more.pop(0).rstrip()
    level = record.level
    mark = record.severity if record.severity != "I" or level is None else str(level)
    clock = record.time.rpartition(" ")[2]
    bars = "│ " * record.indent
    if not full and more:
        text = _in_one_line(text, "\n".join(more).encode())
    yield f"{clock:>15} {mark} {bars}{text}  ({record.file}:{record.line})"
    if full:
        for text in more:
            yield f"{'':>15}   {bars}{text}"


def _in_one_line(text: str, more: bytes) -> str:
    """The first line, with the name where it is on the second, and how many lines there are besides."""
    more = more.rstrip()
    count = more.count(b"\n") + bool(more)
    if text.startswith(DUMP) and count:
        text += " " + _printable(more.split(b"\n", 1)[0].decode("utf-8", "replace").strip())
        count -= 1
    return f"{text.rstrip()}  … +{count} line{'s' * (count != 1)}" if count else text


def _printable(text: str) -> str:
    """Control characters escaped, so that a terminal does not obey them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
