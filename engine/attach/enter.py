"""The ways into a process, one after the other, and what the front end is told meanwhile. Runs in the front end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adbg.engine.attach import bundle, checks
from adbg.engine.attach.blocked import blocked_in
from adbg.engine.attach.remote_exec import RemoteScript
from adbg.engine.attach.snippet import snippet
from adbg.engine.attach.target import Target
from adbg.engine.errors import AdbgError, AttachError
from adbg.engine.proc import Proc
from adbg.engine.protocol.rendezvous import trusted_config

ENDED = "it ended"  # the injector's word for it
INJECTOR = Path(__file__).resolve().parent / "injector"
TELL = 0.5  # seconds between two looks at what the main thread waits in
Way = Literal["listening", "ptrace-pending", "ptrace-thread", "remote_exec"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is. ``entering``: a way is tried; ``queued``: all is in place, and the interpreter has to come to it;
    ``entered``: adbg's code has run there, its agent dials.

    Args:
        way: of ``Way``, "" before one is known.
        thread: which thread brings adbg in, None before one is known.
        blocked: what the main thread is in: the name of a system call, "" while it runs.
    """

    kind: Literal["entering", "queued", "entered"]
    way: str = ""
    thread: int | None = None
    blocked: str = ""


class EntryCancelled(AttachError):
    """The user did not want to wait any longer. Nothing of adbg's will run in the process."""

    ID = 8


class Entry:
    """adbg's code has run in the process. ``release`` when its agent said hello, or will not."""

    def __init__(self, way: Way, injector: Injector | None = None) -> None:
        self.way = way
        self._injector = injector

    def release(self, seconds: float = 2.0) -> str:
        """Have what was mapped for the way in taken away. Waits for it so long; later it happens without us.

        Returns:
            "" or why something is left in the process.
        """
        return "" if self._injector is None else self._injector.release(seconds)


def enter(target: Target, session_file: Path, tell: Callable[[Progress], None], cancelled: threading.Event) -> Entry:
    """Get adbg's snippet run in ``target``; its agent then dials the session of ``session_file``. Blocks until it ran.

    Raises:
        EntryCancelled: ``cancelled`` was set.
        AttachError: there is no way in, or it failed; the process is as it was.
    """
    tell(Progress("entering"))
    if _listens(target.pid):
        tell(Progress("entered", "listening"))
        return Entry("listening")
    with contextlib.suppress(OSError):  # without it, imports are slow
        bundle.write(session_file)
    if target.traced_by:  # ``examine`` lets that pass where there is a way beside the tracer
        return _by_script(RemoteScript(target, snippet(session_file)), target, tell, cancelled)
    injector = Injector(target, snippet(session_file))
    try:
        return _follow(injector, target, tell, cancelled)
    except BaseException:
        injector.release(0.0)
        raise


def _by_script(
    script: RemoteScript, target: Target, tell: Callable[[Progress], None], cancelled: threading.Event
) -> Entry:
    told: Progress | None = None
    looked = time.monotonic()
    while not script.ran:
        if cancelled.wait(0.02) or not Proc(target.pid).folder.exists():
            script.cancel()
            if cancelled.is_set():
                raise _cancelled(target)
            raise AttachError(f"process {target.pid} ended before adbg was in", checks.LIST)
        if time.monotonic() > looked + TELL:
            looked = time.monotonic()
            progress = Progress("queued", "remote_exec", target.pid, blocked_in(target.pid))
            if progress != told:
                tell(progress)
                told = progress
    tell(Progress("entered", "remote_exec", target.pid))
    return Entry("remote_exec")


def _follow(injector: Injector, target: Target, tell: Callable[[Progress], None], cancelled: threading.Event) -> Entry:
    told: Progress | None = None
    way, thread, looked = "", target.pid, 0.0
    while True:
        line = injector.next_line(0.05)
        if cancelled.is_set():
            raise _cancelled(target)
        if line is None:
            if not way or (told is not None and time.monotonic() < looked + TELL):
                continue
        elif line["kind"] == "entered":
            tell(Progress("entered", line["way"], line["thread"]))
            return Entry(line["way"], injector)
        elif line["kind"] == "queued":
            way, thread = line["way"], line["thread"]
        elif line["kind"] == "failed":
            raise _failure(target, line)
        else:
            continue
        looked = time.monotonic()
        progress = Progress("queued", way, thread, blocked_in(target.pid))
        if progress != told:
            tell(progress)
            told = progress


def _cancelled(target: Target) -> EntryCancelled:
    return EntryCancelled(f"adbg does not enter process {target.pid}: it was told not to", "")


def _failure(target: Target, line: dict[str, Any]) -> AttachError:
    process = Proc(target.pid)
    if line.get("errno") == 1:  # EPERM
        with contextlib.suppress(OSError):
            checks.check_tracer(process, process.status(), (0, 0))
        return checks.refused(process)
    if line["why"] == ENDED:
        return AttachError(f"process {target.pid} ended before adbg was in", checks.LIST)
    return AttachError(
        f"adbg did not get into process {target.pid}: {line['why']}; it runs on",
        "attach again, or call adbg.listen() in the script",
    )


def _listens(pid: int) -> bool:
    """Whether an agent waits there for a front end (``adbg.listen()``)."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(2.0)
            probe.connect(trusted_config(pid).socket)
    except (AdbgError, OSError, ValueError):
        return False
    return True


class Injector:
    """The process that does it (``injector/``). It ends by itself when it is done, or when this process is gone."""

    def __init__(self, target: Target, code: str, *options: str) -> None:
        import adbg

        root = Path(adbg.__file__ or "").resolve().parents[1]
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(INJECTOR), str(root), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is the front end's
        )
        self.pid = self._process.pid
        self._say({"pid": target.pid, "started": target.started, "snippet": code})
        threading.Thread(target=self._read, name="adbg-entering", daemon=True).start()

    def next_line(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None when it says nothing for so long."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def release(self, seconds: float) -> str:
        with contextlib.suppress(OSError):
            stdin = self._process.stdin
            if stdin is not None and not stdin.closed:
                stdin.close()
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            line = self.next_line(rest)
            if line is not None and line["kind"] in ("released", "left", "ended", "failed"):
                return str(line.get("why", ""))
        return "" if not seconds else "it is being taken away"

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        for line in self._output():
            with contextlib.suppress(ValueError):
                self._lines.put(json.loads(line))
        status = self._process.wait()
        self._lines.put({"kind": "ended"} if status == 0 else {"kind": "failed", "why": "adbg's injector ended"})

    def _output(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            yield from lines
