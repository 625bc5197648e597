"""Which threads of the target may be used for what.

*Waiting* threads stand in a system call that only waits, on behalf of code that holds no lock of the allocator or of
the loader: such a thread may start another one (``pthread_create`` allocates). glibc's own locks wait with the plain
futex operation from inside libc, so that is never taken for waiting.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from adbg.engine.attach.injector.machine import Machine, State
from adbg.engine.proc import Call, Mapping, Proc

_FUTEX_WAIT, _FUTEX_WAIT_BITSET = 0, 9
_FUTEX_COMMAND = 127
# They wait for themselves, by their own system calls, while a thread allocates or loads.
_BEHIND_LOCKS = ("ld-linux", "ld64", "ld-2", "libtcmalloc", "libjemalloc", "libmimalloc", "libtbbmalloc")
_LIBC = ("libc.so", "libc-2", "libpthread")


class Chooser:
    """For one process. ``waiting`` reads only /proc and stops nothing."""

    def __init__(self, process: Proc, machine: Machine) -> None:
        self._process = process
        self._machine = machine
        self._maps: list[Mapping] = []

    def waiting(self) -> Iterator[int]:
        """Threads that seem to wait, the main thread first."""
        self._maps = []
        for tid in self._process.threads():
            try:
                call = self._process.call(tid)
            except OSError:
                continue  # it ended
            if call is not None and not self._why_not(call.number, call.arguments, call.pc):
                yield tid

    def may_start_thread(self, state: State) -> str:
        """Why a stopped thread may not be used to start one, "" if it may."""
        if state.call < 0:
            return "it was at work"
        self._maps = []
        return self._why_not(state.call, state.arguments, state.pc)

    def main_waits_in(self) -> Call | None:
        return self._process.call(self._process.pid)

    def _why_not(self, number: int, arguments: tuple[int, ...], pc: int) -> str:
        name = os.path.basename(self._file(pc))
        if name.startswith(_BEHIND_LOCKS):
            return f"it waits in {name}"
        if number in self._machine.WAITS:
            return ""
        if number != self._machine.FUTEX:
            return f"it waits in system call {number}"
        operation = arguments[1] & _FUTEX_COMMAND
        if operation == _FUTEX_WAIT_BITSET:
            return ""
        if operation == _FUTEX_WAIT and name and not name.startswith(_LIBC):
            return ""
        return "it waits for a lock of libc's"

    def _file(self, address: int) -> str:
        if not self._maps:
            self._maps = self._process.maps()
        return next((part.path for part in self._maps if part.start <= address < part.end), "")
