"""A target that runs, what is done to it, and the run that nobody attaches to which its result is compared with."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType

from .catalog import TARGETS, Kind


class Damage(Exception):
    """What an attach did to its target."""


def patience(seconds: float) -> float:
    """A deadline for an idle machine, extended by how many processes share a processor now."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _environment() -> dict[str, str]:
    """One thread an operator; and nothing of adbg's, so that the target is a program that nobody prepared."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ADBG_", "PYTHON"))}
    return {**kept, "OMP_NUM_THREADS": "1", "GLOG_minloglevel": "2"}


class Running:
    """A target. ``with`` kills it at the end, whatever it does."""

    def __init__(self, kind: Kind, python: str) -> None:
        self.kind = kind
        self.python = python
        self._folder = tempfile.TemporaryDirectory(prefix="adbg-stress-")
        self._stop = Path(self._folder.name) / "stop"
        self._ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [python, str(TARGETS / f"{kind.script}.py"), kind.word, str(self._stop)],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(),
            start_new_session=True,
        )
        theirs.close()
        self.pid = self.process.pid
        self._lines: deque[str] = deque()
        self._arrived = threading.Condition()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._readers:
            thread.start()
        self._wait_for("READY", 120)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._arrived:
                self._lines.append(line)
                self._arrived.notify()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def _wait_for(self, word: str, limit: float) -> list[str]:
        """The words of the next line that begins with ``word``."""
        deadline = time.monotonic() + patience(limit)
        with self._arrived:
            while True:
                while self._lines:
                    words = self._lines.popleft().split()
                    if words[:1] == [word]:
                        return words
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._readers[0].is_alive()):
                    raise Damage(f"no {word} from the target: {self.condition()}")
                self._arrived.wait(min(left, 0.5))

    def condition(self) -> str:
        """How the process fares, for a message."""
        status = self.process.poll()
        errors = "".join(self._errors).strip()[-500:]
        state = "it runs, but does not answer" if status is None else f"status {status}"
        return f"{state}: {errors}" if errors else state

    def poke(self) -> None:
        """A blocked target does a step. Raises Damage when it does not."""
        if self.kind.poke == "socket":
            self._ours.send(b"0")
        elif self.kind.poke == "signal":
            os.kill(self.pid, signal.SIGUSR1)
        if self.kind.poke:
            self._wait_for("STEP", 30)

    def end(self) -> tuple[int, str]:
        """Have it end: steps done, digest. Raises Damage unless it ends by itself with status 0 and nothing said."""
        self._stop.touch()
        if self.kind.poke == "socket":
            self._ours.shutdown(socket.SHUT_WR)
        elif self.kind.poke == "signal":
            os.kill(self.pid, signal.SIGUSR1)
        _, steps, digest = self._wait_for("END", 60)
        try:
            status = self.process.wait(patience(60))
        except subprocess.TimeoutExpired:
            raise Damage("it printed its result and does not end") from None
        for thread in self._readers:
            thread.join(patience(10))
        said = [line for line in self._errors if "adbg" in line or "Traceback" in line]
        if status or said:
            raise Damage(f"status {status}, {''.join(said).strip()[:300]!r} on stderr")
        return int(steps), digest

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._ours.close()
        for thread in self._readers:
            thread.join(patience(10))
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self._folder.cleanup()


def witness(kind: Kind, python: str, steps: int) -> str:
    """The digest of as many steps in a process of their own that nobody attaches to."""
    command = [python, str(TARGETS / f"{kind.script}.py"), kind.word, "/nonexistent", str(steps)]
    outcome = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=patience(1200))
    words = outcome.stdout.split()
    if outcome.returncode or words[-3:-1] != ["END", str(steps)]:
        raise RuntimeError(f"the witness of {kind.name!r} failed: {outcome.stderr[-500:]}")
    return words[-1]
