"""What the keeper writes into the run directory: the program's output and its exit status."""

from __future__ import annotations

import errno
import os
import time

PIECE = 16 << 20  # bytes that are given back at a time


class OutputLog:
    """Appends the output to ``output-r0.log`` and writes ``exit.json``. After a failure it records no more. Of the
    output its last ``limit`` bytes are kept (0: all): the disk space of the rest is given back."""

    def __init__(self, run_dir: str, limit: int = 0) -> None:
        self.run_dir = run_dir
        self._limit = limit
        self._end = self._gone = 0
        self.problem = ""  # for the user; the keeper sends it as a NOTE
        self._fd = -1
        if run_dir:
            try:
                os.makedirs(run_dir, exist_ok=True)
                path = os.path.join(run_dir, "output-r0.log")
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if os.path.exists(os.path.join(run_dir, "exit.json")):  # of a run before this one, in the same folder
                    os.unlink(os.path.join(run_dir, "exit.json"))
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.problem = f"the program's output is not recorded in {self.run_dir}: {error.strerror}"
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while self._fd >= 0 and view:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                self._give_up(error)
        self._end += len(data)
        if self._limit and self._fd >= 0 and self._end - self._gone > self._limit + min(PIECE, self._limit):
            self._shorten()

    def _shorten(self) -> None:
        """A hole in place of the oldest output; offsets stay true."""
        import ctypes  # takes 10 ms, and is needed in few runs

        end = self._end - self._limit
        punched = False
        try:  # KEEP_SIZE | PUNCH_HOLE
            punched = ctypes.CDLL(None).fallocate(self._fd, 3, ctypes.c_long(0), ctypes.c_long(end & ~4095)) == 0
        except (OSError, AttributeError):
            pass
        if punched:
            self._gone = end
        else:
            self._give_up(OSError(errno.EFBIG, f"{self._limit} bytes of it are, and this file system keeps no holes"))

    def exit(self, code: int, signum: int, asked: bool) -> None:
        """{"code": int or null, "signal": int or null, "asked": whether the front end had sent it, "ended": UTC,
        ISO 8601}, replaced in one go."""
        if not self.run_dir:
            return
        ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = '{"code": %s, "signal": %s, "asked": %s, "ended": "%s"}\n' % (  # noqa: UP031  json would cost 4 ms of start-up
            "null" if signum else code,
            signum or "null",
            "true" if asked else "false",
            ended,
        )
        path = os.path.join(self.run_dir, "exit.json")
        try:
            with open(path + ".new", "w") as file:
                file.write(text)
            os.replace(path + ".new", path)
        except OSError as error:
            if self._fd >= 0:  # else the reason was given already
                self.problem = f"the exit status is not recorded in {self.run_dir}: {error.strerror}"
