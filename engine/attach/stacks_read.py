"""Reading every thread of a process: from its agent, /proc, and py-spy where it is installed.

The agent needs the GIL to answer; /proc and py-spy need nothing of the process: they answer for one that has no agent
yet, or whose GIL is held. Runs on the caller's thread and takes 0.1 s, with native frames up to two; not on the events
thread.
"""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.attach import stacks_pyspy as pyspy
from adbg.engine.attach.stacks import OsThread, threads_of
from adbg.engine.attach.stacks_merged import Note, NoteKind, ProcessThreads, merge
from adbg.engine.errors import AdbgError, DebuggeeGone
from adbg.engine.protocol.messages import AllThreadsBody

ANSWER = 3.0  # seconds that an agent has to answer: one that holds the GIL for longer is read from outside


class Native(enum.Enum):
    """Whether native frames are read, for which the process is held a moment."""

    WHERE_HARMLESS = "where harmless"
    YES = "yes"
    NO = "no"


Ask = Callable[[float], AllThreadsBody]


def read(
    pid: int, ask: Ask | None = None, native: Native = Native.WHERE_HARMLESS, host: str = "", **who: Any
) -> ProcessThreads:
    """The threads of a process. ``ask(seconds)`` has its agent answer within that time, None: it has none. ``host``:
    where it runs, "" for here; ``who``: fields of ``ProcessThreads`` to be filled in.

    Raises:
        AdbgError: it is gone, or nobody can tell anything of it.
    """
    facts: AllThreadsBody | None = None
    notes: list[Note] = []
    if ask is None:
        notes.append(Note(NoteKind.NO_AGENT))
    else:
        try:
            facts = ask(ANSWER)
        except DebuggeeGone:
            raise
        except AdbgError:
            notes.append(Note(NoteKind.SILENT, f"{ANSWER:g}"))
    if host not in ("", os.uname().nodename):
        notes.append(Note(NoteKind.ELSEWHERE, host))
        return ProcessThreads(pid, threads=merge((), facts, ()), notes=tuple(notes), **who)
    kernel: list[OsThread] = []
    try:
        kernel = _SLEEPS.corrected(pid, threads_of(pid))
    except AdbgError as error:
        if facts is None:
            raise
        notes.append(Note(NoteKind.NO_PROC, error.message))
    seen: Sequence[pyspy.SeenThread] = ()
    held = 0.0
    if not pyspy.find():
        notes.append(Note(NoteKind.NO_PYSPY))
    else:
        disturbed = _disturbed(kernel) if native is Native.WHERE_HARMLESS else []
        if disturbed:
            notes.append(Note(NoteKind.NATIVE_LEFT, ", ".join(disturbed)))
        seen, held = _seen(pid, native is not Native.NO and not disturbed, kernel, notes)
    return ProcessThreads(pid, threads=merge(kernel, facts, seen), gil=bool(seen), held=held, notes=tuple(notes), **who)


def _seen(
    pid: int, native: bool, kernel: Sequence[OsThread], notes: list[Note]
) -> tuple[Sequence[pyspy.SeenThread], float]:
    """What py-spy sees, and how long the process was held for it at most."""
    begun = time.monotonic()
    if native:
        try:
            seen = pyspy.dump(pid, True)
            return seen, time.monotonic() - begun
        except AdbgError as error:
            notes.append(Note(NoteKind.PYSPY_FAILED, error.message))
        finally:
            _SLEEPS.remember(pid, kernel, begun)
    try:
        return pyspy.dump(pid, False), 0.0
    except AdbgError as error:
        if not native:
            notes.append(Note(NoteKind.PYSPY_FAILED, error.message))
        return (), 0.0


def _disturbed(kernel: Iterable[OsThread]) -> list[str]:
    """The threads whose system call a hold would end with EINTR, and which may not expect that."""
    return [f"{each.name} {each.tid} in {each.syscall}" for each in kernel if each.disturbed_by_a_halt]


class _Sleeps:
    """How long threads slept before adbg itself had them woken: a hold wakes every thread for a moment, and the kernel
    counts from there."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], tuple[int, float, float]] = {}  # -> (switches, slept, when)
        self._lock = threading.Lock()

    def remember(self, pid: int, before: Sequence[OsThread], when: float) -> None:
        """The process was held; ``before``: its threads at ``when``."""
        slept = {(each.tid, each.started): each for each in before if each.sleeps and each.slept is not None}
        with contextlib.suppress(AdbgError):
            after = threads_of(pid, 0)
            with self._lock:
                for now in after:
                    old = slept.get((now.tid, now.started))
                    if old is not None and old.slept is not None and now.sleeps and now.switches - old.switches <= 2:
                        self._known[pid, now.tid, now.started] = (now.switches, old.slept, when)

    def corrected(self, pid: int, threads: Sequence[OsThread]) -> list[OsThread]:
        now = time.monotonic()
        found = []
        with self._lock:
            for thread in threads:
                known = self._known.get((pid, thread.tid, thread.started))
                if known is not None and thread.slept is not None and known[0] == thread.switches:
                    thread = replace(thread, slept=max(thread.slept, known[1] + now - known[2]))
                elif known is not None:
                    del self._known[pid, thread.tid, thread.started]
                found.append(thread)
        return found


_SLEEPS = _Sleeps()
