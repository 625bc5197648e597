"""File descriptors that adbg keeps in the program's process, told from those that the program put in their place.

A program may close every descriptor that it does not know (daemons do), and the next file that it opens gets the number
of one of adbg's: a number alone says nothing. So whoever writes to, closes or copies a descriptor of adbg's asks first
what is behind it now (``Own``: 1 us), and adbg's numbers are high ones: those that a program opens are the lowest free.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING

from adbg.engine.outside import own, suppress

if TYPE_CHECKING:
    import socket

_HIGH = 600  # below 1024, the usual limit, over the 256 up to which daemons like to close


class Own:
    """A descriptor of adbg's. ``path``: what it was opened as; one that was deleted or replaced is not ours either (the
    system may have given its inode to a file of the program's)."""

    __slots__ = ("_file", "number", "path")

    def __init__(self, number: int, path: str = "") -> None:
        self.number = number
        self.path = path
        self._file = os.fstat(number)

    @property
    def ours(self) -> bool:
        """Whether the number still stands for what it stood for."""
        try:
            if not os.path.samestat(os.fstat(self.number), self._file):
                return False
            return not self.path or os.path.samestat(os.stat(self.path), self._file)
        except own(OSError):
            return False

    def check(self) -> None:
        """Raises OSError saying what became of it."""
        if self.ours:
            return
        if self.path and not os.path.exists(self.path):
            raise FileNotFoundError(errno.ENOENT, f"{os.path.basename(self.path)} was deleted")
        raise OSError(errno.EBADF, "the program closed the file")

    def close(self) -> None:
        """Only what is ours: by now the number may be the program's."""
        if self.number >= 0 and self.is_on(self.number):
            with suppress(OSError):
                os.close(self.number)
        self.number = -1

    def is_on(self, number: int) -> bool:
        """Whether another descriptor is on the same file."""
        try:
            return os.path.samestat(os.fstat(number), self._file)
        except own(OSError):
            return False


def _floor() -> int:
    """The lowest number for adbg's own, as far as the process may have such high ones."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _HIGH if limit == resource.RLIM_INFINITY else min(_HIGH, int(limit) // 2)


def lifted(fd: int) -> int:
    """``fd`` under a high number, not inherited; the old number is closed. As it was where there is no room."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _floor())
    except own(OSError, ValueError):
        return fd
    os.close(fd)
    return int(high)


@contextlib.contextmanager
def high_numbers() -> Iterator[None]:
    """What a library opens within gets high numbers: the free ones below are taken meanwhile (0.2 ms)."""
    taken: list[int] = []
    pipe: Own | None = (
        None  # a file that nobody else has: by the end the program may have closed some, and have the numbers
    )
    try:
        with suppress(OSError):
            floor = _floor()
            taken += os.pipe()
            pipe = Own(taken[0])
            while taken[-1] < floor:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        for fd in taken:
            with suppress(OSError):
                if pipe is not None and pipe.is_on(fd):
                    os.close(fd)


def never_freed(value: object) -> None:
    """For an object that closes a descriptor when it is freed (at the interpreter's end, in a forked child): by its
    number, whosever that is then. ``Own.close`` closes it instead."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def freed(sock: socket.socket) -> None:
    """Its descriptor is closed (``Own.close``): the object may go, it closes nothing."""
    if sock.fileno() >= 0:
        sock.detach()
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(sock))


def on_file(path: str | os.PathLike[str]) -> list[Own]:
    """The descriptors of this process that are on a file: those that a library opened for adbg."""
    name = os.fspath(path)
    try:
        wanted = os.stat(name)
    except own(OSError):
        return []
    try:
        numbers = [int(entry) for entry in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")]
    except own(OSError, ValueError):  # no /proc
        numbers = list(range(3, 4096))
    found = []
    for number in numbers:
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), wanted):
                found.append(Own(number, name))
    return found
