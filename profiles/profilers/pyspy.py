"""py-spy: Python stacks of all threads, with native frames where it may, read from outside by a process beside the
program. It needs nothing of the program, which may hang or hold the GIL."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sysconfig
import time

from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.region import Region

FILE = "profile.collapsed"
RATE = 100  # per second; at 250 a tiny loop takes 1.11 times as long, at 1000 1.30 times
STARTS = 20.0  # seconds; it reads the symbols of the process first
ENDS = 30.0  # seconds to write its file
HINT = "`pip install 'adbg[profilers]'` into the environment of adbg"


def find() -> str:
    """Its path: beside the Python that runs adbg, else on PATH; "" where there is none."""
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


class PySpy(Profiler):
    name = "py-spy"
    what = "Python stacks of all threads, and native frames, sampled from outside; also of a program that hangs"
    format = "collapsed"
    file = FILE
    where = "outside"

    def __init__(self) -> None:
        self._folder = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._said = b""

    def available(self) -> Availability:
        return Availability(True) if find() else Availability(False, "py-spy is not installed", HINT)

    def start(self, region: Region, folder: str) -> None:
        """Beside the program. In the program itself there is nothing to do."""
        self._folder = folder
        if not self.pid:
            return
        command = find()
        if not command:
            raise ProfileError("py-spy is not installed", HINT)
        argv = [command, "record", "--pid", str(self.pid), "--format", "raw", "--rate", str(RATE)]
        argv += ["--duration", "86400", "--threads", "--output", os.path.join(folder, FILE)]
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C here ends it only when the region is over
            )
        except OSError as error:
            raise ProfileError(f"{command} does not start: {error.strerror}", HINT) from None
        self._await_start(self._child)

    def _await_start(self, child: subprocess.Popen[bytes]) -> None:
        """Until it says that it samples."""
        assert child.stdout is not None
        limit = time.monotonic() + STARTS
        while b"Sampling process" not in self._said and time.monotonic() < limit:
            if child.poll() is not None:
                self._said += child.stdout.read()
                last = self._said.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
                self._child = None
                raise ProfileError(
                    f"py-spy cannot read process {self.pid}: {last[0].strip()}",
                    "it needs the right to trace it: run adbg as that user or root, and see kernel.yama.ptrace_scope",
                )
            if select.select([child.stdout], [], [], 0.05)[0]:
                self._said += os.read(child.stdout.fileno(), 4096)

    def stop(self) -> Artifact:
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGINT)  # it writes what it has
        if child is not None:
            try:
                output = child.communicate(timeout=ENDS)[0]
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                said = f"py-spy did not write its file within {ENDS:.0f} s"
                raise ProfileError(said, "try a shorter region") from None
            self._said += output
        path = os.path.join(self._folder, FILE)
        there = os.path.exists(path) and os.path.getsize(path) > 0
        return Artifact(self.name, self._folder, FILE if there else "", self.format, {"hz": RATE})
