"""How long a frame takes while a long log is scrolled: ``adbg log`` in a pty, from the key (or the wheel) to the last
byte of the screen's update.

The child is the whole program with its real driver: parsing of the key, the panel, Textual's compositor, the writer
thread. What a terminal emulator needs to paint is not in it. The end of a frame is the last byte before ``QUIET``
seconds without one, so that an update in two parts counts whole. Its processor time is what the kernel charged to the
child's threads meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import statistics
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

QUIET = 0.04  # seconds; the screen has 25 updates a second at most then, as many as a held key makes
DOWN, UP, PAGE_DOWN, PAGE_UP, END, HOME = "j", "k", "\x06", "\x02", "G", "g"
WHEEL_DOWN, WHEEL_UP = "\x1b[<65;40;20M", "\x1b[<64;40;20M"
HALF_DOWN, HALF_UP = "\x04", "\x15"
SYNC_ASKED, SYNC_KNOWN = b"\x1b[?2026$p", "\x1b[?2026;2$y"


class Viewer:
    """``adbg log PATH`` on a terminal of 160x45 that nobody sees."""

    def __init__(self, path: Path, rows: int = 45, cols: int = 160) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
                os.execv(sys.executable, [sys.executable, "-m", "adbg", "log", str(path)])
            finally:
                os._exit(127)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def settled(self, quiet: float = QUIET, limit: float = 120.0) -> tuple[float, bytes]:
        """Read until nothing comes for ``quiet`` seconds; when the last byte came, and all of them."""
        last, deadline, seen = time.perf_counter(), time.perf_counter() + limit, bytearray()
        while time.perf_counter() < deadline and select.select([self._master], [], [], quiet)[0]:
            data = os.read(self._master, 1 << 16)
            last = time.perf_counter()
            if SYNC_ASKED in data:
                self.send(SYNC_KNOWN)
            seen += data
        return last, bytes(seen)

    def until(self, text: str, limit: float = 60.0) -> None:
        """Until ``text`` was written to the screen."""
        seen, deadline = bytearray(), time.perf_counter() + limit
        while text.encode() not in seen:
            if time.perf_counter() > deadline:
                raise SystemExit(f"{text!r} did not come:\n{seen[-2000:].decode(errors='replace')}")
            seen += self.settled(0.02, 1.0)[1]

    def spent(self) -> float:
        """Processor seconds of all its threads."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def frame(self, keys: str) -> tuple[float, float, int]:
        """Milliseconds until the screen is finished, of them on a processor, and bytes written."""
        spent, started = self.spent(), time.perf_counter()
        self.send(keys)
        if not select.select([self._master], [], [], 2.0)[0]:
            raise SystemExit(f"{keys!r} changed nothing on the screen")
        ended, data = self.settled()
        return (ended - started) * 1e3, (self.spent() - spent) * 1e3, len(data)

    def close(self) -> None:
        self.send("q")
        with suppress(OSError):
            self.settled(1.0, 5.0)
        os.waitpid(self.pid, 0)
        os.close(self._master)


def keys() -> Iterator[tuple[str, str]]:
    """(kind, keys): lines, the wheel and pages down from the middle of the log and up again, none of them at an end of
    it; and a jump to either end."""
    shuffled = random.Random(7)
    yield "jump", END
    yield "jump", HOME
    down = [("line", DOWN), ("wheel", WHEEL_DOWN), ("half a page", HALF_DOWN), ("page", PAGE_DOWN)]
    up = [("line", UP), ("wheel", WHEEL_UP), ("half a page", HALF_UP), ("page", PAGE_UP)]
    for way, steps in ((down, 50), (up, 25)):
        yield from (("page", way[3][1]) for _ in range(5))
        turns = way * steps
        shuffled.shuffle(turns)
        yield from turns


def scrolled(path: Path) -> dict[str, float]:
    """Frames while scrolling in the log at ``path``, once all of it is indexed."""
    viewer = Viewer(path)
    viewer.until(f"{path}")
    while viewer.settled(1.0)[1]:
        pass
    for way in (END, HOME, PAGE_DOWN):  # what is made once is made
        viewer.frame(way)
    times: dict[str, list[float]] = {}
    spent, written = [], []
    for kind, key in keys():
        took, on_processor, size = viewer.frame(key)
        times.setdefault(kind, []).append(took)
        spent.append(on_processor)
        written.append(size)
    viewer.close()
    everything = [took for kind in times.values() for took in kind]
    found = {
        "frame while scrolling, median ms": statistics.median(everything),
        "frame while scrolling, p95 ms": statistics.quantiles(everything, n=20)[-1],
        "frame while scrolling, worst ms": max(everything),
        "frame while scrolling, processor, p95 ms": statistics.quantiles(spent, n=20)[-1],
        "frame while scrolling, median KB to the terminal": statistics.median(written) / 1e3,
    }
    for kind in ("line", "wheel", "half a page", "page"):
        found[f"frame of a {kind}, p95 ms"] = statistics.quantiles(times[kind], n=20)[-1]
    return found


if __name__ == "__main__":
    for name, value in scrolled(Path(sys.argv[1])).items():
        print(f"{value:10.1f}  {name}")
