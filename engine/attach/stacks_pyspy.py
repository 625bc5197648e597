"""Stacks read from outside by py-spy, where it is installed: they need nothing of the process, not even the GIL.

py-spy is a program of its own; nothing of it is imported. Two ways to call it: without stopping the process (Python
frames, who holds the GIL: 14-18 ms), or with the native frames too, for which it holds all threads: 0.1 s for plain
Python, 0.8 to 1.9 s for torch, whose symbols it reads meanwhile. A hold ends ``epoll_wait`` with EINTR.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sysconfig
from dataclasses import dataclass
from typing import Any

from adbg.engine.errors import CommandError

PATIENCE = 30.0  # seconds; the slowest dump here took 2.8
GRACE = 2.0  # seconds to let go of the process after SIGTERM
MISSING = "py-spy is not installed here"
REMEDY = "`pip install py-spy` into the environment of adbg gives native stacks, and who holds the GIL"


@dataclass(frozen=True, slots=True)
class SeenFrame:
    """``module``: the library of a native frame, "" of a Python frame. ``line`` 0: not known."""

    function: str
    file: str
    line: int
    module: str = ""


@dataclass(frozen=True, slots=True)
class SeenThread:
    """One thread that runs Python. ``ident`` is ``threading.get_ident()`` of it."""

    ident: int
    tid: int
    name: str
    owns_gil: bool
    frames: tuple[SeenFrame, ...]  # innermost first


def find() -> str:
    """The path of py-spy: beside the Python that runs adbg, else on PATH; "" where there is none."""
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    if os.access(beside, os.X_OK):
        return beside
    return shutil.which("py-spy") or ""


def dump(pid: int, native: bool, timeout: float = PATIENCE, program: str = "") -> list[SeenThread]:
    """The Python threads of ``pid``. ``native``: with native frames; the process is held meanwhile.

    Raises:
        CommandError: there is no py-spy, it may not read the process, or it took too long.
    """
    command = program or find()
    if not command:
        raise CommandError(MISSING, REMEDY)
    stopped = _state(pid) == "T"
    argv = [command, "dump", "--pid", str(pid), "--json", "--native" if native else "--nonblocking"]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C here must not end it while it holds the process
        )
    except OSError as error:
        raise CommandError(f"{command} does not start: {error.strerror}", REMEDY) from None
    try:
        output, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise CommandError(f"py-spy had not read process {pid} after {timeout:g} s", "try again") from None
    finally:
        _end(child, pid, stopped)
    if child.returncode:
        raise CommandError(f"py-spy cannot read process {pid}: {_reason(errors.decode(errors='replace'))}")
    try:
        return [_thread(entry) for entry in json.loads(output)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"the answer of {command} cannot be read", f"its version: `{command} --version`") from None


def _end(child: subprocess.Popen[bytes], pid: int, stopped: bool) -> None:
    """End it where it still runs. It attaches by SIGSTOP: killed before that arrived, it would leave the process
    stopped."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if not stopped and _state(pid) == "T":
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _reason(text: str) -> str:
    """The innermost cause of what it wrote: "Error: A" "Reason: B"."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("Error:", "Reason:", "Permission"))] or lines[:1]
    return told[-1].removeprefix("Error:").removeprefix("Reason:").strip() if told else "it does not say why"


def _thread(entry: dict[str, Any]) -> SeenThread:
    return SeenThread(
        ident=int(entry["thread_id"]),
        tid=int(entry["os_thread_id"] or 0),
        name=str(entry["thread_name"] or ""),
        owns_gil=bool(entry["owns_gil"]),
        frames=tuple(_frame(frame) for frame in entry["frames"]),
    )


def _frame(entry: dict[str, Any]) -> SeenFrame:
    """A native frame has the path of its library in ``module``; a Python frame has none."""
    return SeenFrame(str(entry["name"]), str(entry["filename"]), int(entry["line"]), str(entry["module"] or ""))
