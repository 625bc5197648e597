"""One process's files of a run directory, written. Owned by the recorder's thread.

Rows go in transactions of a few hundred, after the log records that they point to, so that what a reader finds is whole
even when the process died between two writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adbg.engine.descriptors import Own, lifted
from adbg.engine.node_batch import ROW
from adbg.engine.record import budget
from adbg.engine.record import files as runfiles
from adbg.engine.record.database import Database
from adbg.engine.types import SourceLine

PRUNE_EVERY = 5000  # rows between two looks at the size
PRUNE_MOST = 8  # parts that go in one transaction
LARGE = 1 << 20  # bytes of packed nodes

_WIDTH = {
    "backward": 17,
    "node": 16,
    "edge": 5,
    "node_event": 8,
    "nodes_ran": 6,
    "same_graph": 2,
    "stack": 2,
    "stop": 7,
    "artifact": 5,
    "log": 3,
    "collective": 19,
}
_INSERT = {t: f"INSERT OR REPLACE INTO {t} VALUES ({','.join('?' * n)})" for t, n in _WIDTH.items()}


class RunWriter:
    """Writes one process's files. Not thread-safe. Every method may raise OSError or sqlite3.Error."""

    def __init__(self, run_dir: str | os.PathLike[str], rank: int, info: Mapping[str, Any], limit: int = 0) -> None:
        """``limit``: bytes that may be kept, 0 for any number."""
        self._limit = limit // 2
        # Bytes of packed nodes from which on a transaction should end: an eighth of what is kept may go in one.
        self.burst = self._limit // (2 * PRUNE_MOST) or 1 << 62
        self._since = 0  # rows written since the size was asked for
        self.first = 0  # the first call that is still whole, once some went
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.label = runfiles.claim_label(self.run_dir, rank)
        self.info = dict(info)
        self._info_path = runfiles.create_info(self.run_dir, self.label, self.info)
        self._vlog = _Appender(runfiles.vlog_path(self.run_dir, self.label), limit - limit // 2)
        self._stacks: dict[str, int] = {}
        self._new_stacks: list[tuple[int, str]] = []
        self._database = Database(runfiles.events_path(self.run_dir, self.label), runfiles.TABLES)
        self._db = self._database.db

    def write(self, rows: Mapping[str, Sequence[tuple[Any, ...]]], ends: Sequence[tuple[Any, ...]] = ()) -> None:
        """One transaction. ``ends``: (end_seq, us, error, number) of backward calls."""
        packed = rows.get("nodes_ran", ())
        due = self._due(sum(map(len, rows.values())) + _packed(packed))
        pruned = 0
        self._database.begin(large=due or sum(len(row[4]) for row in packed) > LARGE)
        try:
            # What these calls share with older ones stays.
            self._db.executemany(_INSERT["same_graph"], rows.get("same_graph", ()))
            if due:
                pruned = self._prune()
            if self._new_stacks:
                self._db.executemany(_INSERT["stack"], self._new_stacks)
            for table, values in rows.items():
                if table != "same_graph":
                    self._db.executemany(_INSERT[table], values)
            if ends:
                self._db.executemany("UPDATE backward SET end_seq=?, us=?, error=? WHERE number=?", ends)
            self._database.commit()
        finally:
            self._database.end()
        self._new_stacks = []
        if pruned:
            self.first = pruned
            self.update_info({"pruned": pruned})

    def _due(self, rows: int) -> bool:
        """Whether the size is to be looked at, with so many rows more."""
        self._since += rows
        return bool(self._limit) and self._since >= min(PRUNE_EVERY, self._limit // 2000)

    def _prune(self) -> int:
        """Make room; the first call that is still whole, 0 where all are."""
        self._since = first = 0
        before, now = 0, budget.used(self._db)
        for _ in range(PRUNE_MOST):
            if now <= self._limit or now == before:  # nothing is left that may go
                break
            first = budget.prune(self._db)
            before, now = now, budget.used(self._db)
        return first

    def stack_id(self, frames: Sequence[SourceLine]) -> int | None:
        """The id of a forward stack; equal stacks are written once."""
        if not frames:
            return None
        text = json.dumps([(f.file, f.line, f.function) for f in frames], separators=(",", ":"))
        id = self._stacks.get(text)
        if id is None:
            id = self._stacks[text] = len(self._stacks) + 1
            self._new_stacks.append((id, text))
        return id

    def append_log(self, data: bytes) -> tuple[int, int]:
        """(offset, length) of ``data`` in the VLOG file."""
        return self._vlog.append(data)

    def update_info(self, changes: Mapping[str, Any]) -> None:
        self.info.update(changes)
        runfiles.write_info(self._info_path, self.info)

    def close(self) -> None:
        """Nothing is written afterwards."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()
        self._vlog.close()


def _packed(rows: Sequence[tuple[Any, ...]]) -> int:
    """Nodes in rows of ``nodes_ran``: one takes as much room as a row of its own."""
    return sum(len(row[4]) for row in rows) // ROW.size


class _Appender:
    """An append-only file, unbuffered: what was appended is there when the process dies. A framework may append to the
    VLOG file too (``log.redirect``), so the place of what was written is asked from the kernel."""

    def __init__(self, path: Path, keep: int) -> None:
        self._kept = budget.Shortened(keep)
        self._own = Own(lifted(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)), os.fspath(path))

    def append(self, data: bytes) -> tuple[int, int]:
        start, view = -1, memoryview(data)
        while view:
            self._own.check()
            written = os.write(self._own.number, view)
            view = view[written:]
            if start < 0:
                start = os.lseek(self._own.number, 0, os.SEEK_CUR) - written
        self._kept.shorten(self._own.number, max(start, 0) + len(data))
        return max(start, 0), len(data)

    def close(self) -> None:
        self._own.close()
