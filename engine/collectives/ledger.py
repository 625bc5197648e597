"""The ledger: a row for every collective that this process calls, while a client is attached.

The taps of a backend put rows in on the program's threads, and into the crash journal, which outlives the process.
"adbg-ledger" hands them to the recorder four times a second, and again when they end; of the last quarter second of a
process that is killed the journal tells, but not what ended. Once a second that thread looks at what the
framework itself counts, and at frames: a collective that C++ called, and that hangs, comes into the ledger so.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from adbg.engine import own_threads
from adbg.engine.backends.base import Backend, CollectiveTaps, KnownGroup
from adbg.engine.backends.base.collectives import GROUP, ID, SEQ, STATE, THREAD, LiveRow, row_value
from adbg.engine.collectives.kept import kept_text
from adbg.engine.flag import Flag
from adbg.engine.outside import own, suppress
from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running
from adbg.engine.types import BriefCall, BriefRun

RING = 20_000  # rows in memory: a quarter second's, at 12 us a collective
PASS = 0.25  # seconds between two looks at the rows
LOOK = 4  # passes between two looks at the framework's own counters
_OVER = frozenset(("done", "failed"))

Record = Callable[[Collective], None]
Seen = tuple[dict[str, "int | None"], list[Collective]]


class Ledger(Observer):
    """``new_group``: called on a program's thread when a group is used for the first time."""

    def __init__(self, new_group: Callable[[list[ProcessGroup]], None]) -> None:
        self.rows: collections.deque[LiveRow] = collections.deque(maxlen=RING)
        self.number = itertools.count(1).__next__
        self.inside: dict[int, list[int]] = {}
        self.taps: list[CollectiveTaps] = []
        self._backends: list[Backend] = []
        self.since: float | None = None
        self._met = ctypes.c_int32(0)  # ``since`` is known
        self.beside: dict[tuple[str, int], Collective] = {}  # that C++ called and that hung, by group and number
        self._new_group = new_group
        self._groups: set[str] = set()
        self._record: Record | None = None
        self._keep: Callable[[str], None] | None = None
        self._recorded = 0  # id of the last row that the recorder has
        self._open: dict[int, LiveRow] = {}  # rows that it has without their end
        self._passing = threading.Lock()
        self._ending = Flag()
        self._watcher: threading.Thread | None = None

    @property
    def total(self) -> int:
        """Rows that were ever in it, as far as they are counted."""
        try:
            return int(self.rows[-1][ID])
        except IndexError:
            return 0

    def values(self, last: int) -> list[Collective]:
        """The newest rows, in order, and what C++ hangs in."""
        rows = list(itertools.islice(reversed(self.rows.copy()), last))
        return [row_value(row) for row in reversed(rows)] + list(self.beside.values())

    def last(self) -> Collective | None:
        """The newest row; None while there is none."""
        try:
            return row_value(self.rows[-1])
        except IndexError:
            return None

    # ---- from the taps, on the program's threads

    def add(self, row: LiveRow) -> None:
        self.rows.append(row)
        keep = self._keep
        if keep is not None:  # 4 us
            try:
                keep(kept_text(row))
            except own(Exception):  # the journal lacks it
                pass

    def met(self, group: KnownGroup) -> None:
        if self.since is None:
            self.since = time.time()
            self._met.value = 1
        try:
            if self._watcher is None:
                ending = self._ending
                self._watcher = own_threads.begin(self._watch, "adbg-ledger", (ending,), ending.set)
            if group.name not in self._groups:
                self._groups.add(group.name)
                self._new_group([found for taps in self.taps for found in taps.groups()])
        except own(Exception):  # the record lacks the group's ranks
            pass

    # ---- into the record

    def record_into(self, record: Record | None) -> None:
        """Rows go there from now on, those that are here already first."""
        self._record = record

    def keep_in(self, keep: Callable[[str], None] | None) -> None:
        """``keep``: called with each row that is added, as text, before the collective is issued."""
        self._keep = keep

    def hand_over(self) -> None:
        """What is new, and what ended since, to the recorder. Any thread."""
        record = self._record
        if record is None:
            return
        with self._passing:
            for id, row in list(self._open.items()):
                if row[STATE] in _OVER:
                    del self._open[id]
                    record(row_value(row))
            fresh = []
            for row in reversed(self.rows.copy()):
                if row[ID] <= self._recorded:
                    break
                fresh.append(row)
            for row in reversed(fresh):
                self._recorded = row[ID]
                if row[STATE] not in _OVER:
                    self._open[row[ID]] = row
                record(row_value(row))

    def _watch(self, over: Flag) -> None:
        seen: Seen = ({}, [])
        for turn in itertools.count():
            if over.wait(PASS):
                return
            with suppress(Exception):
                self.hand_over()
                if turn % LOOK == 0:
                    seen = self._look(seen)

    # ---- what C++ called, on "adbg-ledger"

    def _look(self, before: Seen) -> Seen:
        """One look at what has no row; ``before``: what the look before found. A row is made of what both have."""
        now = {group.name: group.issued for taps in self.taps for group in taps.groups()}
        behind = {name for name, number in now.items() if number and number > self._known_of(name)}
        known = {key: row for key, row in self.beside.items() if row.seq}
        told = [row for taps in self.taps for row in taps.history()] if known or (behind and now == before[0]) else []
        for found in told:
            if found.state == "done":
                self._over(known.get((found.group, found.seq)), found)
            elif found.group in behind and found.seq > self._known_of(found.group):
                self._hangs((found.group, found.seq), found)
        mine = {row[THREAD] for row in self._open.values()}
        calls = sum(backend.backward_count for backend in self._backends)  # the same line again is another call
        in_frames = [
            replace(row, id=self.total, backward=calls)
            for taps in self.taps
            for row in taps.in_frames()
            if row.thread not in mine
        ]
        for found in in_frames:
            if found in before[1]:
                self._hangs((found.group, -found.thread), found)
        for key, row in list(self.beside.items()):
            if not row.seq and row.thread not in {found.thread for found in in_frames}:
                self._over(self.beside.get(key), replace(row, state="done", ended=time.time()))
        return now, in_frames

    def _known_of(self, group: str) -> int:
        """Number of the last collective of a group that has a row."""
        known = max((seq for name, seq in self.beside if name == group), default=0)
        for row in reversed(self.rows.copy()):
            if row[GROUP].name == group and row[SEQ]:
                return max(int(row[SEQ]), known)
        return known

    def _hangs(self, key: tuple[str, int], found: Collective) -> None:
        if key not in self.beside:
            begun = found.begun or time.time() - PASS * LOOK
            row = self.beside[key] = replace(found, id=self.number(), begun=begun)
            if self._record is not None:
                self._record(row)

    def _over(self, known: Collective | None, found: Collective) -> None:
        if known is None:
            return
        for key, row in list(self.beside.items()):
            if row is known:
                del self.beside[key]
        if self._record is not None:
            self._record(replace(known, state=found.state, ended=found.ended))

    # ---- as an observer

    def backend_added(self, backend: Backend) -> None:
        taps = backend.collectives()
        if taps is not None:
            taps.sink = self
            self.taps.append(taps)
            self._backends.append(backend)

    def backward_begin(self, running: Running) -> None:
        self._entered(running.call.thread, running.call.number)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        self._left(running.call.thread, running.call.number)

    patient = True

    @property
    def zeros(self) -> Sequence[ctypes.c_int32]:
        return (self._met,)  # a collective may be called in a backward

    def brief_begin(self, call: BriefCall) -> None:
        self._entered(call.thread, call.number)

    def brief_end(self, run: BriefRun) -> None:
        self._left(run.call.thread, run.call.number)

    def _entered(self, thread: int, number: int) -> None:
        """A call may be told of twice: briefly, and as one that is looked into after all."""
        within = self.inside.setdefault(thread, [])
        if number not in within:
            within.append(number)

    def _left(self, thread: int, number: int) -> None:
        within = self.inside.get(thread)
        if within and number in within:
            within.remove(number)
            if not within:
                self.inside.pop(thread, None)

    def detach(self) -> None:
        """The taps come out with their backend. What was written down stays in the record alone."""
        self._ending.set()
        self.hand_over()
        self._watcher = None
        self._ending = Flag()
        self._groups.clear()
        self._open.clear()
        self.rows.clear()
        self.beside.clear()
        self.inside.clear()
        self.since = None
        self._met.value = 0

    def abandon(self) -> None:
        self._record = self._watcher = self._keep = None
        self._passing = threading.Lock()  # another thread of the parent may have held it
        for taps in self.taps:
            taps.sink = None
