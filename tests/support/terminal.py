"""A program in a pty behind a terminal emulator (pyte): what a person at the keyboard has, without a person."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence

import pyte

from support.patience import patience

LIMIT = 60.0  # seconds


class Terminal:
    """One program, started at once. Everything it wrote is in ``raw``, what a person sees now in ``text``."""

    def __init__(
        self,
        command: Sequence[str],
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.screen = pyte.Screen(cols, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self.updating = False  # a synchronized update has begun: the screen is half old and half new
        self.status: int | None = None  # as a shell counts it, once it ended
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                if cwd:
                    os.chdir(cwd)
                variables = {**os.environ, **(env or {}), "TERM": "xterm-256color"}
                for name in ("COLUMNS", "LINES", "NO_COLOR"):
                    variables.pop(name, None)
                os.execvpe(command[0], list(command), variables)
            finally:
                os._exit(127)
        self._size(rows, cols)

    def _size(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def resize(self, rows: int, cols: int) -> None:
        self._size(rows, cols)
        self.screen.resize(rows, cols)

    @property
    def text(self) -> str:
        """The screen as lines of text."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def modes(self) -> list[object]:
        """termios attributes of the terminal, to compare before and after."""
        return list(termios.tcgetattr(self._master)[:4])

    def send(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def read(self, seconds: float = 0.05) -> bool:
        """Take in what there is; False once the program closed the terminal."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        before = len(self.raw)
        self.raw += data
        self._stream.feed(data)
        self._synchronise(before)
        return bool(data)

    def _synchronise(self, before: int) -> None:
        """As a terminal that knows synchronized output: it says so when asked, and what is between begin and end of an
        update is not shown yet."""
        if self.raw.find(b"\x1b[?2026$p", max(before - 8, 0)) >= 0:
            with contextlib.suppress(OSError):
                self.send(b"\x1b[?2026;2$y")
        begin, end = (self.raw.rfind(b"\x1b[?2026" + mode, max(before - 8, 0)) for mode in (b"h", b"l"))
        if begin != end:
            self.updating = begin > end

    def wait_for(self, wanted: str | Callable[[str], bool], limit: float = LIMIT) -> str:
        """Until the screen has this text (or makes the condition true); the screen. A failure shows the screen."""
        deadline = time.monotonic() + patience(limit)
        while time.monotonic() < deadline:
            text = self.text
            if not self.updating and (wanted(text) if callable(wanted) else wanted in text):
                return text
            if not self.read():
                break
        raise AssertionError(f"{wanted!r} did not come; the screen is:\n{self.text}")

    def wait_end(self, limit: float = LIMIT) -> int:
        """Until the program ended; its status as a shell counts it."""
        deadline = time.monotonic() + patience(limit)
        while time.monotonic() < deadline:
            self.read()
            if self._reaped():
                while self.read(0):
                    if not select.select([self._master], [], [], 0)[0]:
                        break
                assert self.status is not None
                return self.status
        raise AssertionError(f"it does not end; the screen is:\n{self.text}")

    def _reaped(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = 128 - code if code < 0 else code
        return self.status is not None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the program itself."""
        if not self._reaped():
            os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close the window; what is on the screen stays readable here."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.kill()
            deadline = time.monotonic() + 5
            while not self._reaped() and time.monotonic() < deadline:
                time.sleep(0.01) if self._master < 0 else self.read(0.01)
        self.hang_up()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
