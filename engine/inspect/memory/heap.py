"""What malloc holds and nobody uses: the difference between what a program frees and what its RSS shows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Info(ctypes.Structure):
    """struct mallinfo2 of glibc's malloc.h."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS.split()]


def free_heap() -> int | None:
    """Bytes of the C library's heap, all arenas, that are free (some of their pages may be given back to the system).
    None where it does not tell: other libraries than glibc, before 2.33. 11-35 us."""
    look = _mallinfo()
    return int(look().fordblks) if look is not None else None


def _mallinfo() -> Callable[[], Any] | None:
    # One that keeps Python's lock, as ``process.resident``: a program with busy threads is not made to wait for it.
    function = getattr(ctypes.PyDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Info
        function.argtypes = ()
    return function
