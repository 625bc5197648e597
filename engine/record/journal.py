"""The crash journal: what hooks saw last, in a file that survives the process.

Hooks write into a small shared mapping under the session's turn, so that the kernel has every entry whatever kills the
process; Python's own ``faulthandler`` adds the stacks. ``crash`` makes both into text afterwards, in the front end. The
file holds three rings, of nodes, of log records and of collectives, with ``SLOTS`` slots of ``SLOT`` bytes each, little
endian::

    slot = seq u64 | time f64 (epoch) | length u16 | text (UTF-8), fields separated by TAB

``seq`` is 0 while a slot is written, and written last. Behind the rings stands the last backward call that was not
looked into: number u64 | begin f64 | end f64 (epoch; 0 while it runs).
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from adbg.engine.descriptors import Own, lifted
from adbg.engine.outside import own, suppress
from adbg.engine.record.signal_stack import SignalStack

SLOTS, SLOT = 64, 1024
HEAD = struct.Struct("<QdH")
_SEQ = struct.Struct("<Q")
BRIEF = struct.Struct("<Qdd")
_TIME = struct.Struct("<d")
ROOM = SLOT - HEAD.size
RING = SLOTS * SLOT
BRIEF_AT = 3 * RING
_SIZE = BRIEF_AT + BRIEF.size
CRASHES = frozenset(
    number for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL") if (number := getattr(signal, name, None))
)


def journal_path(folder: Path, label: str) -> Path:
    """A hidden file: it is mapped into the program, which would die of SIGBUS if somebody truncated ``*``."""
    return folder / f".journal-r{label}.bin"


def faults_path(folder: Path, label: str) -> Path:
    return folder / f"faults-r{label}.log"


class Journal:
    """Written by one process. Nothing but ``__init__`` raises."""

    def __init__(self, folder: Path, label: str) -> None:
        """Raises OSError."""
        self.folder, self.label = folder, label
        fd = os.open(journal_path(folder, label), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _SIZE)  # a full disk must show here, not as SIGBUS in a hook
            self._map = _mapped(fd)
        finally:
            os.close(fd)
        self._next = [itertools.count() for _ in range(3)]  # collectives are called on several threads
        self._faults: IO[str] | None = None
        self._faults_file: Own | None = None
        self._held = 0  # references to it that are not ``faulthandler``'s
        self._stack = SignalStack()
        self._handlers: dict[int, bytes] = {}  # what ``faulthandler`` put in, as sigaction tells

    def put(self, *fields: object) -> None:
        """What happened to a node or a call, 1.2 us."""
        self._write(0, "\t".join(map(str, fields)).encode("utf-8", "replace"))

    @property
    def brief_cell(self) -> memoryview:
        """Where the next two write, for who does it in their place."""
        return self._map[BRIEF_AT : BRIEF_AT + BRIEF.size]

    def brief_begin(self, number: int) -> None:
        """A backward call that is not looked into begins, 0.4 us."""
        BRIEF.pack_into(self._map, BRIEF_AT, number, time.time(), 0.0)

    def brief_end(self) -> None:
        """It ended."""
        _TIME.pack_into(self._map, BRIEF_AT + 16, time.time())

    def log(self, record: str) -> None:
        """A record of adbg's own: the recorder writes it up to 50 ms later, which a crash may not leave it."""
        self._write(1, record.encode("utf-8", "replace"))

    def collective(self, text: str) -> None:
        """A collective that is called now: it may kill the process."""
        self._write(2, text.encode("utf-8", "replace"))

    def _write(self, ring: int, data: bytes) -> None:
        data = data[:ROOM]
        number = next(self._next[ring])
        offset = ring * RING + number % SLOTS * SLOT
        region = self._map
        entry = HEAD.pack(0, time.time(), len(data)) + data
        region[offset : offset + len(entry)] = entry
        _SEQ.pack_into(region, offset, number + 1)

    # ---- Python stacks of a crash

    def watch_faults(self) -> None:
        """Have ``faulthandler`` write into this folder, unless the program uses it already."""
        if faulthandler.is_enabled():
            return
        with suppress(OSError, ValueError, RuntimeError, AttributeError):
            path = faults_path(self.folder, self.label)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._faults_file = Own(lifted(fd))
            self._faults = open(self._faults_file.number, "w", closefd=False)  # noqa: SIM115  kept open
            self._held = sys.getrefcount(self._faults)
            faulthandler.enable(self._faults)
            self._stack.widen()
            self._handlers = {number: _action(number).raw[:8] for number in CRASHES}

    def check_faults(self) -> None:
        """``faulthandler`` knows its file by the number: where the program closed that, a crash must not be told to
        whatever the program opened since (3 us)."""
        if self._faults is not None and self._faults_file is not None and not self._faults_file.ours:
            if self._in_use():
                faulthandler.disable()
            self._faults = None

    def watch_faults_again(self) -> None:
        """Where a framework has put its own signal handlers over ``faulthandler``'s when it was imported, put that one
        on top, with the framework's as the next (it restores and raises the signal again, so both have their say)."""
        if self._faults is None or not self._in_use() or not self._handlers:
            return
        with suppress(OSError, ValueError, AttributeError, RuntimeError):
            now = {number: _action(number) for number in CRASHES}
            others = {n: action for n, action in now.items() if action.raw[:8] != self._handlers[n]}
            if others:
                faulthandler.disable()  # puts back the handlers of before, the framework's are lost
                for number, action in others.items():
                    ctypes.CDLL(None).sigaction(int(number), action, None)
                faulthandler.enable(self._faults)

    def _in_use(self) -> bool:
        """``faulthandler`` has our file still, which it holds: the program may have enabled it for a file of its own,
        and has a right to keep that."""
        return faulthandler.is_enabled() and sys.getrefcount(self._faults) > self._held

    def close(self) -> None:
        """The process ends in good order: nothing to keep."""
        self.abandon()
        for path in (journal_path(self.folder, self.label), faults_path(self.folder, self.label)):
            with suppress(OSError):
                path.unlink()

    def abandon(self) -> None:
        """In a forked child: the journal is the parent's."""
        if self._faults is not None:
            if self._in_use():
                faulthandler.disable()
            self._faults = None
            with suppress(OSError, AttributeError):
                self._stack.put_back()
        if self._faults_file is not None:
            self._faults_file.close()


def _mapped(fd: int) -> memoryview:
    """The file in memory, for the life of the process. Not by ``mmap``, which keeps a descriptor of its own: it would
    close that by its number in the end, whosever it is then. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    address = libc.mmap(None, _SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return memoryview((ctypes.c_ubyte * _SIZE).from_address(address)).cast("B")


def _action(number: int) -> ctypes.Array[ctypes.c_char]:
    """The signal's handler as the kernel has it; its address comes first. struct sigaction has 152 bytes on x86-64."""
    action = ctypes.create_string_buffer(512)
    ctypes.CDLL(None).sigaction(int(number), None, action)
    return action


def open_journal(folder: str, label: str, problem: Callable[[str], Any]) -> Journal | None:
    """None (and one call of ``problem``) where no file can be made; None for no folder."""
    if not folder or not os.path.isdir(folder):
        return None
    try:
        journal = Journal(Path(folder), label)
    except own(OSError, ValueError) as error:
        problem(f"no crash journal: {error}")
        return None
    journal.watch_faults()
    return journal
