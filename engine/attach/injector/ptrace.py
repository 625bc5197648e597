"""The ptrace calls that the injector makes, on one thread of the target. One thread makes them all."""

from __future__ import annotations

import ctypes
import os
import signal
import time

SEIZE, INTERRUPT, CONTINUE, SYSCALL, DETACH = 0x4206, 0x4207, 7, 24, 17
GETREGSET, SETREGSET, GETSIGMASK, SETSIGMASK, GET_RSEQ = 0x4204, 0x4205, 0x420A, 0x420B, 0x420F
TRACESYSGOOD = 1
EVENT_STOP = 128
PRSTATUS = 1
WALL = 0x40000000
ALL_SIGNALS = (1 << 64) - 1
_LARGEST = 1 << 16  # of a register set: 11008 bytes with AMX, 17 KB with the widest SVE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Gone(Exception):
    """The thread ended while it was held."""


class TookTooLong(Exception):
    """The thread did not come to the stop that was waited for."""


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    result: int = _libc.ptrace(request, tid, address, data)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))  # which makes it a ProcessLookupError, a PermissionError
    return result


class Stop:
    """Why a thread stands: at a system call, at an event (``INTERRUPT``, group-stop), or with a signal to deliver."""

    __slots__ = ("event", "signal")

    def __init__(self, status: int) -> None:
        self.signal = os.WSTOPSIG(status)
        self.event = status >> 16

    @property
    def at_call(self) -> bool:
        return self.signal == signal.SIGTRAP | 0x80

    @property
    def interrupted(self) -> bool:
        return self.event == EVENT_STOP and self.signal == signal.SIGTRAP

    @property
    def group(self) -> bool:
        return self.event == EVENT_STOP and self.signal != signal.SIGTRAP


class Thread:
    """A thread of the target under ptrace, from here to ``detach``. It is not stopped yet."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        _ptrace(SEIZE, tid, 0, TRACESYSGOOD)

    def interrupt(self) -> None:
        _ptrace(INTERRUPT, self.tid)

    def wait(self, seconds: float) -> Stop:
        """Raises TookTooLong, Gone."""
        end = time.monotonic() + seconds
        pause = 0.00002
        while True:
            try:
                seen, status = os.waitpid(self.tid, WALL | os.WNOHANG)
            except ChildProcessError:
                raise Gone from None
            if seen:
                if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                    raise Gone
                return Stop(status)
            if time.monotonic() > end:
                raise TookTooLong
            time.sleep(pause)
            pause = min(pause * 2, 0.002)

    def resume(self, deliver: int = 0) -> None:
        """On to the next system call's begin or end."""
        _ptrace(SYSCALL, self.tid, 0, deliver)

    def go_on(self, deliver: int = 0) -> None:
        """On to the next event."""
        _ptrace(CONTINUE, self.tid, 0, deliver)

    def detach(self, deliver: int = 0) -> None:
        """Raises OSError where it is not stopped: the end of this process lets it go then."""
        _ptrace(DETACH, self.tid, 0, deliver)

    def registers(self, kind: int) -> bytes:
        """A register set. Raises OSError where this kernel or processor has none of the kind."""
        buffer = ctypes.create_string_buffer(_LARGEST)
        vector = _Vector(ctypes.addressof(buffer), _LARGEST)
        _ptrace(GETREGSET, self.tid, kind, ctypes.addressof(vector))
        return buffer.raw[: vector.length]

    def set_registers(self, kind: int, data: bytes) -> None:
        buffer = ctypes.create_string_buffer(data, len(data))
        vector = _Vector(ctypes.addressof(buffer), len(data))
        _ptrace(SETREGSET, self.tid, kind, ctypes.addressof(vector))

    def mask(self) -> int:
        """The signals that the thread blocks; of one that a call like ppoll lent another mask, its own."""
        value = ctypes.c_uint64()
        _ptrace(GETSIGMASK, self.tid, 8, ctypes.addressof(value))
        return value.value

    def set_mask(self, signals: int) -> None:
        value = ctypes.c_uint64(signals)
        _ptrace(SETSIGMASK, self.tid, 8, ctypes.addressof(value))

    def restartable_area(self) -> int:
        """The address of the thread's ``struct rseq``, 0 where it has none or the kernel is older than 5.13."""
        buffer = ctypes.create_string_buffer(24)
        try:
            _ptrace(GET_RSEQ, self.tid, 24, ctypes.addressof(buffer))
        except OSError:
            return 0
        return int.from_bytes(buffer.raw[:8], "little")


class Memory:
    """The target's memory, by ``/proc/PID/mem``: what the target may only read or run can be written here, too."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def read(self, address: int, length: int) -> bytes:
        data = os.pread(self._file, length, address)
        if len(data) != length:
            raise ProcessLookupError(3, "it ended") if not data else OSError(5, "its memory cannot be read")
        return data

    def write(self, address: int, data: bytes) -> None:
        if os.pwrite(self._file, data, address) != len(data):
            raise OSError(5, "its memory cannot be written")

    def close(self) -> None:
        os.close(self._file)
