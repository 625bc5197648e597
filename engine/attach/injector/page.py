"""The memory that adbg maps into the target: one page of code, then its data and a stack.

| offset | |
|---|---|
| 0 | ``MARK``, then the code of ``Machine.CODE`` from 0x40: may be read and run, never written by the target |
| 0x1000 | state, counters, addresses of functions, the snippet |
| up to ``SIZE`` | the stack that functions are called on, downwards |
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from enum import IntEnum

from adbg.engine.attach.injector.ptrace import Memory
from adbg.engine.proc import Mapping, Proc

MARK = b"adbg attach 1\0\0\0"
SIZE = 0x20000
DATA = 0x1000
_HEAD = 0x40
_FUNCTIONS = DATA + 0x40
_OWNER = DATA + 0x100
_SNIPPET = DATA + 0x200
LONGEST = 0x3000
#: In the order of the table that the code calls through. Those of _OPTIONAL are there since Python 3.11.
PYTHON = (
    "PyDict_New", "PyRun_String", "Py_DecRef", "PyErr_Clear", "PyGILState_Ensure", "PyGILState_Release",
    "PyThreadState_Get", "PyThreadState_EnterTracing", "PyThreadState_LeaveTracing",
)  # fmt: skip
OPTIONAL = ("PyThreadState_EnterTracing", "PyThreadState_LeaveTracing")
LIBC = ("pthread_self", "pthread_detach")


class Stage(IntEnum):
    """What became of the snippet."""

    IDLE = 0
    ARMED = 1  # whoever comes first runs it: the main thread's pending call or the thread of its own
    RUNNING = 2
    DONE = 3
    FAILED = 4  # it raised
    CANCELLED = 5


class Page:
    """One such region in the target, at ``start``."""

    def __init__(self, memory: Memory, start: int) -> None:
        self._memory = memory
        self.start = start

    # ------------------------------------------------------------------ what the code reads

    def write(self, code: bytes, functions: dict[str, int], owner: tuple[int, int]) -> None:
        """Everything but the snippet; ``owner``: (pid, start) of this process."""
        self._memory.write(self.start, MARK.ljust(_HEAD, b"\0") + code)
        table = struct.pack(f"<{len(PYTHON + LIBC)}Q", *(functions.get(name, 0) for name in PYTHON + LIBC))
        self._memory.write(self.start + _FUNCTIONS, table)
        self._memory.write(self.start + _OWNER, struct.pack("<QQ", *owner))

    def arm(self, snippet: bytes, mask: int) -> None:
        """``mask``: of the signals that the snippet's thread blocks."""
        if len(snippet) >= LONGEST:
            raise ValueError("the snippet is too long")
        self._memory.write(self.start + DATA + 0x20, struct.pack("<Q", mask))
        self._memory.write(self.start + _SNIPPET, snippet + b"\0")
        self._put(0, Stage.ARMED)

    def set_frame(self, stack: int) -> None:
        """The stack pointer that a function's end goes home with."""
        self._memory.write(self.start + DATA + 0x18, struct.pack("<Q", stack))

    def set_queued(self, value: int) -> None:
        self._put(4, value)

    def cancel(self) -> None:
        """The snippet is not run any more, unless it runs now."""
        if self.stage is Stage.ARMED:
            self._put(0, Stage.CANCELLED)

    def keep(self) -> None:
        """For good: nobody can tell any more whether the target looks into it."""
        self._put(0, Stage.RUNNING)

    def put(self, address: int, value: int) -> None:
        self._memory.write(address, struct.pack("<Q", value))

    # ------------------------------------------------------------------ what the code writes

    @property
    def stage(self) -> Stage:
        return Stage(self._get(0))

    @property
    def queued(self) -> bool:
        """Whether the main thread has still to run the pending call: its queue holds an address of this page."""
        return self._get(4) != 0

    @property
    def thread(self) -> int:
        """The thread of its own, 0 until it has begun."""
        return self._get(8)

    @property
    def result(self) -> int:
        """Of the last function that was called."""
        value: int = struct.unpack("<q", self._memory.read(self.start + DATA + 0x10, 8))[0]
        return value

    @property
    def owner(self) -> tuple[int, int]:
        pid, started = struct.unpack("<QQ", self._memory.read(self.start + _OWNER, 16))
        return pid, started

    @property
    def stack(self) -> int:
        """Where a function's stack begins; 16 bytes aligned."""
        return self.start + SIZE - 64

    @property
    def spare(self) -> int:
        """8 bytes that a function may write to."""
        return self.start + DATA + 0x30

    def in_use(self, threads: Collection[int]) -> bool:
        """Whether something of the target, which has these threads, may still run or look into it."""
        return self.queued or self.thread in threads or self.stage is Stage.RUNNING

    def holds(self, address: int) -> bool:
        return self.start <= address < self.start + SIZE

    def _get(self, offset: int) -> int:
        return int.from_bytes(self._memory.read(self.start + DATA + offset, 4), "little")

    def _put(self, offset: int, value: int) -> None:
        self._memory.write(self.start + DATA + offset, value.to_bytes(4, "little"))


def left_behind(process: Proc, memory: Memory) -> list[Page]:
    """Regions of injectors that were killed, or could not take their own away."""
    maps = [part for part in process.maps() if not part.path]
    return [
        Page(memory, part.start)
        for part, after in zip(maps, [*maps[1:], None])
        if _is_region(part, after) and memory.read(part.start, len(MARK)) == MARK
    ]


def _is_region(part: Mapping, after: Mapping | None) -> bool:
    """A whole one, or one whose data was not mapped yet."""
    if part.access != "r-xp" or part.end - part.start not in (DATA, SIZE):
        return False
    whole = part.end - part.start == SIZE
    return whole or (
        after is not None and (after.start, after.access) == (part.end, "rw-p") and after.end >= part.start + SIZE
    )
