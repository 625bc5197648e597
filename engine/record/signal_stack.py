"""Room for the signal handlers of others that run behind ``faulthandler``'s.

``faulthandler`` has its handlers run on a stack of their own, 16 to 30 KB from Python's heap. When it has written its
stacks it raises the signal again, so the framework's handler runs there too. Paddle 3.3.1's makes a C++ traceback: it
ran over the end of that stack and into the heap, and died of "free(): invalid pointer" in the middle of its message, in
up to half of the runs, as the heap happened to lie. Without adbg it has the thread's own stack. So the thread gets a
larger one, mapped apart, while adbg uses ``faulthandler``. Only the thread that enables it has any.
"""

from __future__ import annotations

import ctypes
import mmap

SIZE = 1 << 20  # bytes; of memory only what is used
_OFF = 2  # SS_DISABLE
_GUARD = mmap.PAGESIZE


class _Stack(ctypes.Structure):
    """``stack_t`` of signal(7)."""

    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class SignalStack:
    """Of the thread that calls both methods."""

    def __init__(self) -> None:
        self._before: _Stack | None = None
        self._base = 0

    def widen(self) -> None:
        """Where the thread's handlers have a stack of their own that is smaller than SIZE. Raises OSError,
        AttributeError where there is no such function."""
        libc = _libc()
        now = _Stack()
        if libc.sigaltstack(None, ctypes.byref(now)) or now.flags & _OFF or now.size >= SIZE or self._base:
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = libc.mmap(None, _GUARD + SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            return
        libc.mprotect(base, _GUARD, 0)  # what is larger still ends there, and not in something else
        if libc.sigaltstack(ctypes.byref(_Stack(base + _GUARD, 0, SIZE)), None):
            libc.munmap(base, _GUARD + SIZE)
            return
        self._before, self._base = now, base

    def put_back(self) -> None:
        """What was there before, unless another one is there now."""
        if not self._base:
            return
        libc, now = _libc(), _Stack()
        if not libc.sigaltstack(None, ctypes.byref(now)) and now.base == self._base + _GUARD:
            if libc.sigaltstack(ctypes.byref(self._before), None) == 0:  # type: ignore[arg-type]
                libc.munmap(self._base, _GUARD + SIZE)
            self._base = 0


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.sigaltstack.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return libc
