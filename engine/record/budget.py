"""How much a run may keep on the disk: people let it run overnight. What is oldest goes first.

Each process has half its budget for the database and half for its log. A log keeps its length and loses its beginning
(a hole in the file), so that every offset into it stays true.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

from adbg.engine.node_batch import ROW
from adbg.engine.outside import suppress

LIMIT = 2 << 30  # bytes of one process
KEPT_COLLECTIVES = 20_000  # newest rows of the ledger that outlive the calls of their time
KEPT_STOPS = 10_000  # newest stops that outlive the calls they belong to
_PARTS = 64  # of what is kept, one goes at a time: a second's work at most
_HOLE = 16 << 20  # a log loses its beginning in pieces of this size
_BY_SEQ = ("node_event", "nodes_ran", "log", "artifact")


def used(db: sqlite3.Connection) -> int:
    """Bytes of the database that hold something."""
    values = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")]
    return int((values[0] - values[1]) * values[2])


def prune(db: sqlite3.Connection) -> int:
    """Delete the oldest part of the calls and all that belongs to it, inside a transaction; the number of the first
    call that is still whole."""
    first, last = db.execute("SELECT min(number), max(number) FROM backward").fetchone()
    if first is None:
        first = last = 0
    if first == last and _drop_graph(db):
        return int(last + 1)
    seq_first, seq_last = db.execute(
        "SELECT min(low), max(high) FROM (SELECT min(seq) AS low, max(seq) AS high FROM node_event"
        " UNION ALL SELECT min(seq), max(last) FROM nodes_ran UNION ALL SELECT min(seq), max(seq) FROM log)"
    ).fetchone()
    cut = first + max(1, (last - first) // _PARTS) if last > first else first
    seq = db.execute("SELECT seq FROM backward WHERE number >= ? ORDER BY number LIMIT 1", (cut,)).fetchone()
    seq_cut = seq[0] if seq and last > first else 0
    if seq_first is not None and seq_cut <= seq_first:  # one call has it all, or no call was seen
        seq_cut = seq_first + max(1, (seq_last - seq_first) // _PARTS)
    for table in _BY_SEQ:
        db.execute(f"DELETE FROM {table} WHERE seq < ?", (seq_cut,))
    db.execute("DELETE FROM same_graph WHERE backward < ?", (cut,))
    for table in ("node", "edge"):
        kept = "SELECT source FROM same_graph"  # of calls that stay
        db.execute(f"DELETE FROM {table} WHERE backward < ? AND backward NOT IN ({kept})", (cut,))
    db.execute("DELETE FROM backward WHERE number < ?", (cut,))
    db.execute(
        "DELETE FROM stop WHERE seq < ? AND seq < (SELECT seq FROM stop ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (seq_cut, KEPT_STOPS),
    )
    db.execute("DELETE FROM collective WHERE id <= (SELECT max(id) FROM collective) - ?", (KEPT_COLLECTIVES,))
    return int(cut)


def _drop_graph(db: sqlite3.Connection) -> bool:
    """The graph of the only call, where it is more than its events and its log: whole, since part of a graph would tell
    of no node behind it."""
    nodes, edges, events, logged = (_count(db, table) for table in ("node", "edge", "node_event", "log"))
    packed = db.execute("SELECT coalesce(sum(length(rows)), 0) FROM nodes_ran").fetchone()[0] // ROW.size
    if nodes + edges <= events + packed + logged:
        return False
    db.execute("DELETE FROM edge")
    db.execute("DELETE FROM node")
    return True


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


class Shortened:
    """A log that keeps its last ``keep`` bytes (0: all)."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.start = 0  # bytes that are gone

    def shorten(self, fd: int, end: int) -> bool:
        """After a write up to ``end``; true when a piece went. Raises OSError where the file system cannot do it and
        the log would outgrow its budget."""
        if not self.keep or end - self.start <= self.keep + min(_HOLE, self.keep):
            return False
        if not make_hole(fd, end - self.keep):
            raise OSError(errno.EFBIG, "the log has reached its size, and this file system keeps no holes")
        self.start = end - self.keep
        return True


def make_hole(fd: int, end: int) -> bool:
    """Give back the disk space of a file up to ``end`` (whole pages)."""
    with suppress(OSError, AttributeError):
        return bool(ctypes.CDLL(None).fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(end & ~4095)) == 0)  # PUNCH_HOLE
    return False


def beginning(path: str | os.PathLike[str]) -> int:
    """Where the text of a log begins: behind what was given back. 0 for a whole one, or one that cannot be read."""
    with suppress(OSError, AttributeError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.lseek(fd, 0, os.SEEK_DATA)
        finally:
            os.close(fd)
    return 0


def parse_size(text: str) -> int:
    """ "500M", "2G", "1.5 GiB" in bytes; 0 for "off". Raises ValueError."""
    word = text.strip().lower().removesuffix("ib").removesuffix("b")
    if word in ("off", "none", "0"):
        return 0
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}.get(word[-1:], 0)
    value = float(word[:-1] if factor else word) * (factor or 1)
    if not 1 << 20 <= value < 1 << 60:
        raise ValueError("at least 1M")
    return int(value)
