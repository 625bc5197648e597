"""Which rows of a log have a line: subtrees folded one by one or all below a depth, records that a filter keeps. UI
thread; the cost of growth is that of what came."""

from __future__ import annotations

import re
import time
from array import array
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import compress

from adbg.engine.errors import CommandError
from adbg.engine.glog import Record
from adbg.tui.app.log.sought import Sought
from adbg.tui.app.log.store import PIECE, LogStore

OPEN = 255  # as a depth: nothing is folded
_BADNESS = "IWEF"
_FOREIGN = Record(0, "", "", 0, "", 0, "")


class Folds:
    """``depth``: what lies deeper has no line, unless its holder is in ``opened``; ``closed`` are folded besides."""

    def __init__(self) -> None:
        self.depth = OPEN
        self.opened: set[int] = set()
        self.closed: set[int] = set()

    @property
    def any(self) -> bool:
        return self.depth < OPEN or bool(self.closed)

    def is_closed(self, store: LogStore, row: int) -> bool:
        """Nothing below ``row`` has a line."""
        return row in self.closed or (store.depths[row] >= self.depth and row not in self.opened)

    def fold(self, store: LogStore, row: int, close: bool) -> None:
        """Fold or unfold what lies below ``row``."""
        if store.depths[row] >= self.depth:
            (self.opened.discard if close else self.opened.add)(row)
            self.closed.discard(row)
        else:
            (self.closed.add if close else self.closed.discard)(row)

    def all(self, depth: int) -> None:
        """Fold all below ``depth``; OPEN unfolds all."""
        self.depth = depth
        self.opened.clear()
        self.closed.clear()

    def shift(self, rows: int) -> None:
        """The first ``rows`` rows went away."""
        self.opened = {row - rows for row in self.opened if row >= rows}
        self.closed = {row - rows for row in self.closed if row >= rows}

    def rows(self, store: LogStore, start: int = 0) -> array[int]:
        """Rows from ``start`` on that have a line. 1,000,000 rows: 10-30 ms."""
        stop = len(store)
        seen = store.depths[start:].translate(bytes(depth <= self.depth for depth in range(256)))
        for row in sorted(self.opened):
            low, high = max(row + 1, start), self._end(store, row, start)
            if low < high:
                limit = store.depths[row] + 1
                seen[low - start : high - start] = store.depths[low:high].translate(
                    bytes(depth <= limit for depth in range(256))
                )
        for row in sorted(self.closed):
            low, high = max(row + 1, start), self._end(store, row, start)
            if low < high:
                seen[low - start : high - start] = bytes(high - low)
        found: array[int] = array("q")
        found.extend(compress(range(start, stop), seen))
        return found

    @staticmethod
    def _end(store: LogStore, row: int, start: int) -> int:
        return store.end_of(row) if row < len(store) else start


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a filter keeps: text, VLOG level up to, severity from, modules, threads; ``context`` rows around."""

    context: int = 0
    pattern: Sought | None = None
    level: int | None = None
    severity: int = 0
    modules: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()

    @property
    def of_heads(self) -> bool:
        """The record must be taken apart."""
        return self.level is not None or self.severity > 0 or bool(self.modules or self.threads)

    def keeps(self, record: Record) -> bool:
        """Besides the text."""
        if self.threads and record.tid not in self.threads:
            return False
        if self.modules:
            name = record.file.partition(".")[0]
            if not any(fnmatchcase(name, module) or fnmatchcase(record.file, module) for module in self.modules):
                return False
        if self.severity:
            return bool(record.severity) and _BADNESS.index(record.severity) >= self.severity
        level = record.level
        return self.level is None or (level if level is not None else 1) <= self.level


def wanted(text: str) -> Wanted:
    """ "+2 level:4 module:nodes,backward thread:7 PATTERN", any part of it; the pattern may stand first (but for
    the +2). ``level:W`` keeps warnings and worse.
    Raises CommandError."""
    context, level, severity = 0, None, 0
    modules: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    words: list[str] = []
    for word in text.split(" "):  # in any order: what is no part of the grammar is the pattern
        found = re.fullmatch(r"\+(\d+)|(level|module|thread):(\S+)", word)
        if found is None or (found[1] and words):
            words.append(word)
            continue
        name, value = found[2], found[3]
        if name is None:
            context = min(int(found[1]), 1000)
        elif name == "module":
            modules = tuple(value.split(","))
        elif name == "thread":
            if not value.replace(",", "").isdigit():
                raise CommandError(f"invalid thread number {value!r}", "the second column shows them: thread:22244")
            threads = tuple(int(part) for part in value.split(",") if part)
        elif value.isdigit():
            level = int(value)
        elif value.upper() in ("W", "E", "F"):
            severity = _BADNESS.index(value.upper())
        else:
            raise CommandError(f"invalid level {value!r}", "level:4 keeps levels up to 4, level:W warnings and errors")
    rest = " ".join(words).strip()
    pattern = Sought(rest) if rest else None
    return Wanted(context, pattern, level, severity, modules, threads)


class Filter:
    """Rows of ``store`` that ``wanted`` keeps, found piece by piece."""

    def __init__(self, store: LogStore, what: Wanted) -> None:
        self.store = store
        self.wanted = what
        self.rows: array[int] = array("q")
        self.hits = 0
        self.position = 0  # rows looked at
        self._until = 0  # context of the last hit goes to here

    def advance(self, budget: float) -> bool:
        """Look on for ``budget`` seconds; True when rows were found."""
        deadline = time.monotonic() + budget
        before = len(self.rows)
        while self.position < len(self.store):
            self._piece()
            if time.monotonic() > deadline:
                break
        return len(self.rows) > before

    def _piece(self) -> None:
        what, store, low = self.wanted, self.store, self.position
        high = store.piece_end(low, len(store), PIECE)
        rows = list(range(low, high)) if what.pattern is None else store.matching(what.pattern, low, high)
        if what.severity:
            rows = [row for row in rows if store.alarming(row)]
        if what.of_heads:
            heads = store.heads(low, high) if rows else {}
            rows = [row for row in rows if what.keeps(heads.get(row, _FOREIGN))]
        self.hits += len(rows)
        if not what.context:
            self.rows.extend(rows)
        else:
            self._with_context(rows, high)
        self.position = high

    def _with_context(self, rows: list[int], high: int) -> None:
        near = self.wanted.context
        kept = self.rows
        last = kept[-1] if kept else -1
        spans = [(self.position, self._until), *((row - near, row + near + 1) for row in rows)]
        for start, stop in spans:
            fresh = range(max(start, last + 1, 0), min(stop, high))
            if fresh:
                kept.extend(fresh)
                last = fresh[-1]
            self._until = max(self._until, stop)

    def shift(self, rows: int) -> None:
        """The first ``rows`` rows went away."""
        self.rows = array("q", [row - rows for row in self.rows if row >= rows])
        self.position = max(self.position - rows, 0)
        self._until -= rows
