"""Fd 2 into a file, while a framework writes its VLOG there. On "adbg-reader" or a parked thread.

A file, never a pipe: a slow reader of a pipe holds the program up (99 to 1166 times slower was measured), a file never
does. Python's own ``sys.stderr`` still writes to the real stderr directly, through the same objects, so that a
``logging.StreamHandler`` made earlier keeps working; what C code or a child writes to fd 2 and is not a log record
reaches it through ``forwarder``, within 20 ms.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from adbg.engine.log import forwarder
from adbg.engine.outside import own, suppress

_STARTING = 5.0  # seconds the forwarder's interpreter has to start; 0.02 on an idle machine


class StderrTap:
    """One redirection at a time. ``start`` and ``stop`` may be called in any order, any number of times."""

    def __init__(self) -> None:
        self.path = ""  # of the file while fd 2 goes there
        self._file = self._pipe = -1
        # The real stderr. Never closed again: while Python's stream is on it, the program may take its number
        # (``sys.stderr.fileno()``, ``faulthandler.enable()``), and would later write to whatever got that number next.
        self._saved = -1
        self._real: os.stat_result | None = None
        self._raws: list[tuple[io.FileIO, Any]] = []
        self._lock = threading.Lock()

    @property
    def on(self) -> bool:
        return self._file >= 0

    @property
    def size(self) -> int:
        """Bytes in the file; 0 when off."""
        return os.fstat(self._file).st_size if self._file >= 0 else 0

    def start(self, path: str | os.PathLike[str] = "", keep: bool = True) -> None:
        """Redirect fd 2 to ``path`` (appending; "": a file without a name). ``keep`` False: not part of a
        record, its disk space is given back as it is read. Does nothing when it is on.

        Raises:
            OSError: the file cannot be made, or there is no fd 2; everything is as before.
        """
        with self._lock:
            if self._file >= 0:
                return
            saved = self._save()
            file = _open(path)
            self._file, self.path = file, os.fspath(path)
            for stream in (sys.stderr, sys.__stderr__):
                with suppress(OSError, ValueError):
                    if stream is not None:
                        stream.flush()
            begin = os.fstat(file).st_size
            self._point(2, saved)
            os.dup2(file, 2)
            self._pipe = _forward(file, saved, begin, not keep)

    def write(self, data: bytes) -> None:
        """A record among those in the file."""
        if self._file >= 0:
            with suppress(OSError):
                os.write(self._file, data)

    def _save(self) -> int:
        if self._saved >= 0 and _same(self._saved, self._real):
            os.dup2(2, self._saved, inheritable=False)
        else:  # the first time, or the program closed it and may have another file there
            self._saved = os.dup(2)
        self._real = os.fstat(self._saved)
        return self._saved

    def stop(self) -> None:
        """Fd 2 as it was, unless the program has put something else there. The rest of the file is still handed on."""
        with self._lock:
            if self._file < 0:
                return
            self._put_back()
            _close(self._pipe, self._file)
            self._file = self._pipe = -1
            self.path = ""

    def abandon(self) -> None:
        """In a forked child: its stderr is the real one. The parent's redirection stays."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self.stop()

    def _put_back(self) -> None:
        if _same(2, os.fstat(self._file)):  # else the program redirected it, or closed it and opened one of its own
            os.dup2(self._saved, 2)
        for raw, name in self._raws:
            if not raw.closed and raw.fileno() == self._saved:
                _reopen(raw, 2, name)
        self._raws.clear()

    def _point(self, old: int, new: int) -> None:
        """Have Python's own stream objects on ``old`` write to ``new``."""
        for stream in (sys.stderr, sys.__stderr__):
            buffer = getattr(stream, "buffer", None)
            raw = getattr(buffer, "raw", buffer)  # unbuffered Pythons have the raw file there
            if not isinstance(raw, io.FileIO) or raw.closed or raw.fileno() != old:
                continue
            name = raw.name
            _reopen(raw, new, name)
            self._raws.append((raw, name))


def _open(path: str | os.PathLike[str]) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    if path:
        return os.open(path, flags, 0o600)
    fd, name = tempfile.mkstemp(prefix="adbg-vlog-")
    try:
        return os.open(name, flags, 0o600)
    finally:
        os.close(fd)
        os.unlink(name)


def _same(fd: int, file: os.stat_result | None) -> bool:
    """Whether ``fd`` is open, and on ``file``."""
    try:
        return file is not None and os.path.samestat(os.fstat(fd), file)
    except own(OSError):
        return False


def _reopen(raw: io.FileIO, fd: int, name: Any) -> None:
    """The same object on another descriptor. A second ``__init__`` is what FileIO offers for that; it does not close
    the old one, and no other thread can run between."""
    with suppress(OSError, ValueError):
        raw.__init__(fd, "wb", closefd=False)  # type: ignore[misc]
        raw.name = name


def _forward(file: int, saved: int, begin: int, erase: bool) -> int:
    """Start the forwarder; returns the end of the pipe that is closed to stop it."""
    reading, writing = os.pipe()
    numbers = [str(n) for n in (file, saved, reading, begin, int(erase), os.getpid())]
    command = [sys.executable, "-I", "-S", str(Path(forwarder.__file__).resolve()), *numbers]
    try:
        subprocess.run(
            command,
            pass_fds=(file, saved, reading),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_STARTING,
            check=True,
        )
        os.close(reading)
    except own(OSError, ValueError, subprocess.SubprocessError):  # no usable interpreter: a thread does it
        _forward_here(os.dup(file), os.dup(saved), reading, begin, erase)
    return writing


def _forward_here(file: int, saved: int, pipe: int, begin: int, erase: bool) -> None:
    os.set_blocking(pipe, False)

    def over() -> bool:
        try:
            return os.read(pipe, 1) == b""
        except BlockingIOError:
            return False

    def run() -> None:
        with suppress(OSError):
            forwarder.follow(forwarder.Tail(file, saved, begin, erase), over, lambda: False)
        _close(file, saved, pipe)

    threading.Thread(target=run, name="adbg-stderr", daemon=True).start()


def _close(*fds: int) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
