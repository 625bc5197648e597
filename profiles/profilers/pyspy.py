"""py-spy: Python stacks of all threads, with native frames where it may, read from outside by a process beside the
program. It needs nothing of the program, which may hang or hold the GIL.

Threads that wait are left out, so that what takes CPU time shows; of a process none of whose threads runs (a deadlock)
the waiting ones are what is asked for.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from typing import Any

from adbg.engine.own_files import own_folders
from adbg.profiles.base import Artifact, Availability, ProfileError, Profiler
from adbg.profiles.profilers.own_stacks import without_own, without_waits
from adbg.profiles.region import Region

FILE = "profile.collapsed"
RATE = 100  # per second; at 250 a tiny loop takes 1.11 times as long, at 1000 1.30 times
STARTS = 25.0  # seconds; it reads the symbols of the process first: 1.5 to 2.5 of torch on a busy machine
LOOK = 0.5  # seconds in which a process that does anything uses a tick of CPU time
ENDS = 30.0  # seconds to write its file
HINT = "`pip install 'adbg[profilers]'` into the environment of adbg"


# It ends with adbg, however that ends: left alone it would go on for as long as the program.
_CHILD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 2)  # PR_SET_PDEATHSIG, SIGINT
if os.getppid() == int(sys.argv[1]): os.execv(sys.argv[2], sys.argv[2:])
"""


def waits(pid: int) -> bool:
    """The process uses no CPU time at all: it hangs, or sleeps."""
    before = _ticks(pid)
    end = time.monotonic() + LOOK
    while time.monotonic() < end:
        if _ticks(pid) != before:
            return False
        time.sleep(0.05)
    return True


def _ticks(pid: int) -> tuple[str, ...]:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return tuple(file.read().rpartition(")")[2].split()[11:13])
    except (OSError, ValueError):
        return ()


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
        self._native = True
        self._idle = False

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
        # one that is held at the begin of its region waits for this
        self._idle = region.kind == "seconds" and waits(self.pid)
        self._run(command)
        if not self._started() and self._refuses_native():
            self._native = False
            self._run(command)
            self._started()
        if self._child is None:
            last = self._said.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise ProfileError(
                f"py-spy cannot read process {self.pid}: {last[0].strip()}",
                "it needs the right to trace it: run adbg as that user or root, and see kernel.yama.ptrace_scope",
            )

    def _refuses_native(self) -> bool:
        return b"native" in self._said or b"unwind" in self._said

    def _run(self, command: str) -> None:
        argv = [command, "record", "--pid", str(self.pid), "--format", "raw", "--rate", str(RATE)]
        argv += ["--full-filenames", "--duration", "86400", "--threads", "--output", os.path.join(self._folder, FILE)]
        argv += ["--native"] * self._native + ["--idle"] * self._idle
        begun, problem = threading.Event(), list[OSError]()

        def hold() -> None:
            """The signal at the parent's death comes at that of the thread which started it."""
            try:
                self._child = child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _CHILD, str(os.getpid()), *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C here ends it only when the region is over
                )
            except OSError as error:
                problem.append(error)
                return
            finally:
                begun.set()
            with contextlib.suppress(ChildProcessError):  # waited for already
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        self._said = b""
        threading.Thread(target=hold, name="adbg-py-spy", daemon=True).start()
        begun.wait()
        if problem:
            raise ProfileError(f"{command} does not start: {problem[0].strerror}", HINT)

    def _started(self) -> bool:
        """Waits until it says that it samples; false when it ended."""
        child = self._child
        assert child is not None and child.stdout is not None
        limit = time.monotonic() + STARTS
        while b"Sampling process" not in self._said and time.monotonic() < limit:
            if child.poll() is not None:
                self._said += child.stdout.read()
                child.stdout.close()
                self._child = None
                return False
            if select.select([child.stdout], [], [], 0.05)[0]:
                self._said += os.read(child.stdout.fileno(), 4096)
        return True

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
        meta: dict[str, Any] = {"hz": RATE, "native": self._native, "idle": self._idle}
        if there:
            with open(path, encoding="utf-8", errors="replace") as file:
                text, left, kept = without_own(file.read(), own_folders(), self._native)
            if not self._idle:
                text, meta["waiting"] = without_waits(text)
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(path + ".new", path)  # on a full disk what py-spy wrote stays
            there, meta["own_share"] = kept > 0, left / max(left + kept, 1)
        return Artifact(self.name, self._folder, FILE if there else "", self.format, meta)
