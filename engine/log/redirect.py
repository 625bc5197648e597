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
import time
import types
from pathlib import Path
from typing import Any, TypeGuard

from adbg.engine import outside
from adbg.engine.descriptors import Own, lifted
from adbg.engine.log import forwarder
from adbg.engine.outside import suppress

_WRITING = 5.0  # seconds that a write of the program's to its stderr is waited for, when adbg leaves
_STARTING = 5.0  # seconds the forwarder's interpreter has to start; 0.02 on an idle machine


class StderrTap:
    """One redirection at a time. ``start`` and ``stop`` may be called in any order, any number of times."""

    def __init__(self) -> None:
        self.path = ""  # of the file while fd 2 goes there
        self.limit = 0  # bytes of a file that is kept; 0 for any number
        self._file: Own | None = None
        self._pipe: Own | None = None
        # The real stderr. Kept while adbg is in the process: a thread of the program may be about to write to it.
        self._saved: Own | None = None
        self._streams: list[tuple[io.BufferedWriter, io.FileIO, _RealStderr]] = []
        self._unbuffered: list[tuple[io.TextIOWrapper, io.FileIO, _RealStderr]] = []
        self._lock = threading.Lock()

    @property
    def on(self) -> bool:
        return self._file is not None

    def elsewhere(self) -> bool:
        """It is on, and the program has something of its own as fd 2 meanwhile."""
        file = self._file
        return file is not None and not file.is_on(2)

    @property
    def size(self) -> int:
        """Bytes in the file; 0 when off, or when the program closed it."""
        file = self._file
        try:
            return os.fstat(file.number).st_size if file is not None and file.ours else 0
        except outside.own(OSError):
            return 0

    def start(self, path: str | os.PathLike[str] = "", keep: bool = True) -> None:
        """Redirect fd 2 to ``path`` (appending; "": a file without a name). ``keep`` False: not part of a
        record, its disk space is given back as it is read; else what is beyond ``limit``. Does nothing when it is on.

        Raises:
            OSError: the file cannot be made, or there is no fd 2; everything is as before.
        """
        with self._lock:
            if self._file is not None:
                return
            saved = self._save()
            file = Own(lifted(_open(path)))
            self._file, self.path = file, os.fspath(path)
            for stream in (sys.stderr, sys.__stderr__):
                with suppress(OSError, ValueError):
                    if stream is not None:
                        stream.flush()
            try:
                begin = os.fstat(file.number).st_size
                self._point(file, saved)
                os.dup2(file.number, 2)
                self._pipe = Own(_forward(file.number, saved.number, begin, (self.limit or -1) if keep else 0))
            except BaseException:
                self._undo(file)
                raise

    def write(self, data: bytes) -> None:
        """A record among those in the file."""
        file = self._file
        if file is not None and file.ours:
            with suppress(OSError):
                os.write(file.number, data)

    def _save(self) -> Own:
        if self._saved is not None and self._saved.ours:
            os.dup2(2, self._saved.number, inheritable=False)
            self._saved = Own(self._saved.number)
        else:  # the first time, or the program closed it and may have another file there
            self._saved = Own(lifted(os.dup(2)))
        return self._saved

    def stop(self) -> None:
        """Fd 2 as it was, unless the program has put something else there. The rest of the file is still handed on."""
        with self._lock:
            if self._file is None:
                return
            self._undo(self._file)

    def leave(self) -> None:
        """``stop``, and nothing is kept."""
        with self._lock:
            if self._file is not None:
                self._undo(self._file)
            saved, self._saved = self._saved, None
            deadline = time.monotonic() + _WRITING
            while _writing() and time.monotonic() < deadline:  # no new write begins: the streams are put back
                time.sleep(0.01)
            if saved is not None and not _writing():
                saved.close()

    def abandon(self) -> None:
        """In a forked child: its stderr is the real one. The parent's redirection stays."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self.stop()

    def _undo(self, file: Own) -> None:
        self._put_back(file)
        for own in (self._pipe, file):
            if own is not None:
                own.close()
        self._file = self._pipe = None
        self.path = ""

    def _put_back(self, file: Own) -> None:
        saved = self._saved
        # Else the program redirected it, or closed it and opened one of its own; or it closed the real one, which only
        # the forwarder has now: it hands on what is no record for as long as a process has the file as its fd 2.
        if file.is_on(2) and saved is not None and saved.ours:
            os.dup2(saved.number, 2)
        for buffer, raw, real in self._streams:
            if not buffer.closed and buffer.raw is real:
                _set_raw(buffer, raw)
        self._streams.clear()
        for stream, raw, real in self._unbuffered:
            if not stream.closed and stream.buffer is real:
                _set_buffer(stream, raw)
        self._unbuffered.clear()

    def _point(self, file: Own, saved: Own) -> None:
        """Have Python's own stream objects on fd 2 write to the real stderr."""
        for stream in (sys.stderr, sys.__stderr__):
            buffer = getattr(stream, "buffer", None)
            if isinstance(buffer, io.BufferedWriter):
                raw = buffer.raw
                if _is_stderr(raw):
                    real = _RealStderr(file, saved, raw)
                    if _set_raw(buffer, real):
                        self._streams.append((buffer, raw, real))
            elif isinstance(stream, io.TextIOWrapper) and _is_stderr(buffer):  # ``python -u``
                real = _RealStderr(file, saved, buffer)
                _set_buffer(stream, real)
                self._unbuffered.append((stream, buffer, real))


class _RealStderr(io.RawIOBase):
    """What ``sys.stderr`` writes to while fd 2 goes into the log: the real stderr, as long as adbg still has it and the
    program has put nothing else on fd 2; then fd 2, as plain Python does. It asks at every write: a program that closes
    all descriptors and opens files of its own would else find its warnings in them."""

    def __init__(self, file: Own, saved: Own, plain: io.FileIO) -> None:
        super().__init__()
        self._file, self._saved = file, saved
        self.name, self.mode = plain.name, plain.mode

    def fileno(self) -> int:
        """Always 2: a program that takes it (``os.dup2(file, sys.stderr.fileno())``, as Paddle's
        ``capture_forward_subgraph_guard`` does to read the VLOG) means what C code writes to."""
        return 2

    def _number(self) -> int:
        return self._saved.number if self._saved.ours and self._file.is_on(2) else 2

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return os.write(self._number(), data)

    def isatty(self) -> bool:
        return os.isatty(self._number())


def _writing() -> bool:
    """Whether a thread is in a write that goes to the real stderr by its number."""
    for innermost in sys._current_frames().values():
        frame: types.FrameType | None = innermost
        while frame is not None:
            if frame.f_code is _RealStderr.write.__code__:
                return True
            frame = frame.f_back
    return False


def _is_stderr(raw: object) -> TypeGuard[io.FileIO]:
    return isinstance(raw, io.FileIO) and not raw.closed and raw.fileno() == 2


def _set_raw(buffer: io.BufferedWriter, raw: io.RawIOBase) -> bool:
    """The same buffer over another file: a second ``__init__``, which drops what waits in it. False where it waits for
    a file that cannot take it."""
    try:
        buffer.flush()
        buffer.__init__(raw)  # type: ignore[misc]
    except outside.own(OSError, ValueError):
        return False
    return True


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


def _set_buffer(stream: io.TextIOWrapper, raw: io.RawIOBase) -> None:
    """The same of a stream that has no buffer."""
    with suppress(OSError, ValueError):
        stream.flush()
    stream.__init__(  # type: ignore[misc]
        raw,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    with suppress(AttributeError):
        stream.mode = "w"  # type: ignore[misc]


def _forward(file: int, saved: int, begin: int, keep: int) -> int:
    """Start the forwarder; returns the end of the pipe that is closed to stop it."""
    ends = [Own(lifted(end)) for end in os.pipe()]
    try:
        _hand_on(file, saved, ends[0], begin, keep)
    except BaseException:
        for end in ends:
            end.close()
        raise
    return ends[1].number


def _hand_on(file: int, saved: int, reading: Own, begin: int, keep: int) -> None:
    """Closes ``reading`` in the end."""
    numbers = [str(n) for n in (file, saved, reading.number, begin, keep, os.getpid())]
    command = [sys.executable, "-I", "-S", str(Path(forwarder.__file__).resolve()), *numbers]
    try:
        subprocess.run(
            command,
            pass_fds=(file, saved, reading.number),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_STARTING,
            check=True,
        )
        reading.close()
    except outside.own(OSError, ValueError, subprocess.SubprocessError):  # no usable interpreter: a thread does it
        copies: list[Own] = []
        try:
            for number in (file, saved):
                copies.append(Own(lifted(os.dup(number))))
            _forward_here(copies[0], copies[1], reading, begin, keep)
        except BaseException:
            for copy in copies:
                copy.close()
            raise


def _forward_here(file: Own, saved: Own, pipe: Own, begin: int, keep: int) -> None:
    os.set_blocking(pipe.number, False)

    def over() -> bool:
        for own in (file, saved, pipe):
            own.check()
        try:
            return os.read(pipe.number, 1) == b""
        except BlockingIOError:
            return False

    def run() -> None:
        with suppress(OSError):
            forwarder.follow(forwarder.Tail(file.number, saved.number, begin, keep), over, lambda: False)
        for own in (file, saved, pipe):
            own.close()

    threading.Thread(target=run, name="adbg-stderr", daemon=True).start()
