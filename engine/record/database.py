"""The database of a record: sqlite, which opens and closes no file between its first transaction and its end.

All that sqlite does goes by the number of a descriptor, and a program may close all of its descriptors at any moment
(daemons do), within a transaction too. What it opens next gets the lowest numbers, so adbg's are high ones
(``descriptors``). A journal that sqlite opens for each transaction has a low one: of 600 programs that closed
everything below 256 within a transaction and opened twelve files, 107 found pages of the record in one of them, and 38
had one closed. So:

- The journal stays open, which only ``locking_mode=EXCLUSIVE`` has (a small transaction takes 40 us instead of 68).
- That would keep readers out. So sqlite is told to lock nothing (``nolock``), and the bytes that its readers look at
  are locked here, in sqlite's order (https://www.sqlite.org/lockingv3.html). The locks are those of an open file: those
  of a process, which sqlite takes, end when anybody in it closes the file, and hold no reader in it. A child of
  ``fork`` has them too: of a parent that was killed in a COMMIT they stay until the child ends.
- In that mode sqlite counts its first transaction only in the file, and its readers tell by this count whether the
  pages that they have are old. It is counted on where page one is written: each transaction does (``user_version``).

What is left: a program that closes everything and has 600 descriptors again before a COMMIT under way ends (50 us).

Tried instead: a table of descriptors of its own for the recorder's thread, by ``close_range(0, ~0,
CLOSE_RANGE_UNSHARE)``. That call alone is harmless: 50 us, no file of the program's is held open or flushed, its
``fcntl`` locks stay. But Python's collector runs on whichever thread allocates, and the finalizers of the program's
objects with it. While a program made 2000 sockets in cycles, 15 collections were on that thread: they closed numbers of
its table, 166 of the sockets stayed open, and their peers never saw the end. Signal handlers, audit hooks and trace
functions of the program's that write to a number would write to a file of adbg's there. Python cannot keep the
collector off a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import struct
import sys
import time
from pathlib import Path

from adbg.engine.descriptors import high_numbers, never_freed, on_file
from adbg.engine.outside import own

_WAIT = 10.0  # seconds for readers to end
_BYTE = 0x40000000
_PENDING = (_BYTE, 1)  # a reader asks for it first, so a writer that has it only waits for those that are there
_RESERVED = (_BYTE + 1, 1)  # a writer has it: a journal that is there undoes nothing
_SHARED = (_BYTE + 2, 510)
_ALL = (_BYTE, 512)
_FLOCK = "hhqqi"  # struct flock of Linux
_KINDS = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}


class Database:
    """A new one, with ``tables`` made. Not thread-safe; ``OSError`` and ``sqlite3.Error`` from every method."""

    def __init__(self, path: Path, tables: str) -> None:
        """Not in WAL mode: that maps a file of the run directory into the program, which dies of SIGBUS when somebody
        truncates it. No fsync: a crash of the process loses nothing that was committed, only one of the machine would,
        and opening takes 2 ms instead of 30. A reader holds a transaction up for as long as it reads."""
        self._count = 0
        self._of_file = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
        self._journal = f"{path}-journal"
        with high_numbers():
            uri = f"{path.absolute().as_uri()}?nolock=1"
            self.db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
            never_freed(self.db)
            self.db.execute("PRAGMA synchronous=OFF")
            self.db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self.db.execute("PRAGMA journal_mode=TRUNCATE")  # one that is empty undoes nothing
            self._own = on_file(path)
            if not self._own:
                raise FileNotFoundError(errno.ENOENT, f"{path.name} was deleted")
            self.begin()
            try:
                for statement in tables.split(";"):  # ``executescript`` would commit first
                    self.db.execute(statement)
                self.commit()
            finally:
                self.end()
        self._own += on_file(self._journal)

    def check(self) -> None:
        """Raises OSError where a file of the record is gone, or the program closed it (16 us)."""
        for file in self._own:
            file.check()

    @property
    def ours(self) -> bool:
        return all(file.ours for file in self._own)

    def begin(self, large: bool = False) -> None:
        """A transaction, until ``end``. Plain methods: a generator (``contextmanager``) would undo the parent's in a
        forked child, where it is freed. ``large``: sqlite may write to the file before the COMMIT, so that 100 MB need
        not wait in memory, and readers wait; else they are held up by the COMMIT alone."""
        self.check()
        try:
            self._hold(fcntl.LOCK_SH, _PENDING)
            self._hold(fcntl.LOCK_SH, _SHARED)
            self._set(fcntl.LOCK_UN, _PENDING)
            self._hold(fcntl.LOCK_EX, _RESERVED)
            if large:
                self._keep_readers_out()
            self.db.execute(f"PRAGMA cache_spill={'ON' if large else 'OFF'}")
            self.db.execute("BEGIN IMMEDIATE")
        except BaseException:
            self.end()
            raise

    def commit(self) -> None:
        self._count += 1
        self.db.execute(f"PRAGMA user_version={self._count & 0x7FFFFFFF}")
        self._keep_readers_out()
        self.check()  # it is now that sqlite writes
        self.db.execute("COMMIT")

    def end(self) -> None:
        """What was not committed is undone."""
        if self.db.in_transaction and self.ours:
            with contextlib.suppress(sqlite3.Error):
                self.db.execute("ROLLBACK")
        if self._own[0].ours:  # where the transaction could not be ended, a reader undoes it
            self._set(fcntl.LOCK_UN, _ALL)

    def close(self) -> None:
        """A database whose descriptor is the program's now is left as it is: sqlite would close that."""
        if self.ours:
            self.db.close()
            with contextlib.suppress(OSError):
                os.unlink(self._journal)

    def _keep_readers_out(self) -> None:
        self._hold(fcntl.LOCK_EX, _PENDING)
        self._hold(fcntl.LOCK_EX, _SHARED)

    def _hold(self, kind: int, where: tuple[int, int]) -> None:
        deadline = time.monotonic() + _WAIT
        while not self._set(kind, where):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "database is locked")
            time.sleep(0.001)

    def _set(self, kind: int, where: tuple[int, int]) -> bool:
        """False where somebody else has a lock there."""
        start, length = where
        number = self._own[0].number
        try:
            if self._of_file is None:
                fcntl.lockf(number, kind if kind == fcntl.LOCK_UN else kind | fcntl.LOCK_NB, length, start)
            else:
                flock = struct.pack(_FLOCK, _KINDS[kind], os.SEEK_SET, start, length, 0)
                fcntl.fcntl(number, self._of_file, flock)
        except own(OSError) as error:
            if self._of_file is not None and error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # none here
                self._of_file = None
                return self._set(kind, where)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True
