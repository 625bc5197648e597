"""Reading every thread of a process: from its agent, /proc, and py-spy where it is installed.

The agent needs the GIL to answer; /proc and py-spy need nothing of the process: they answer for one that has no agent
yet, or whose GIL is held. Runs on the caller's thread and takes 0.1 s, with native frames up to two; not on the events
thread.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.attach import stacks_pyspy as pyspy
from adbg.engine.attach.stacks import OsThread, threads_of
from adbg.engine.attach.stacks_merged import Note, NoteKind, ProcessThreads, merge
from adbg.engine.errors import AdbgError, DebuggeeGone
from adbg.engine.protocol.messages import AllThreadsBody

# Seconds of CPU that a thread takes to go back to sleep, at most: 0.02 ms a hold, 0.8 ms an entry here, and some ms
# where the machine itself is one of several on a processor.
_GLANCE = 0.02
_LATE = 0.3  # seconds that a thread may run on after it was let go of
_OF_A_HOLD, _OF_AN_ENTRY = 4, 60  # times that a thread is woken, at most: 2 and 20 here
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
            _SLEEPS.remember(pid, kernel, begun, _OF_A_HOLD)
            _SLEEPS.over(pid)
    try:
        return pyspy.dump(pid, False), 0.0
    except AdbgError as error:
        if not native:
            notes.append(Note(NoteKind.PYSPY_FAILED, error.message))
        return (), 0.0


def _disturbed(kernel: Iterable[OsThread]) -> list[str]:
    """The threads whose system call a hold would end with EINTR, and which may not expect that."""
    return [f"{each.name} {each.tid} in {each.syscall}" for each in kernel if each.disturbed_by_a_halt]


@dataclass(frozen=True, slots=True)
class _Slept:
    """A thread that slept when something of adbg's was about to wake it, ``when`` (of the monotonic clock). That was
    over by ``until``: what ran later has woken by itself, though it sleeps in the same call again (``time.sleep`` in a
    loop)."""

    thread: OsThread
    when: float
    wakings: int
    until: float = math.inf

    def since(self, now: OsThread) -> float | None:
        """How long it has slept by the monotonic clock; None when it has run for reasons of its own."""
        before = self.thread
        woken = now.switches - before.switches > self.wakings
        if woken or not now.sleeps or now.syscall != before.syscall or now.cpu_seconds - before.cpu_seconds > _GLANCE:
            return None
        if time.monotonic() - (now.slept or 0.0) > self.until + _LATE:
            return None
        return (before.slept or 0.0) + time.monotonic() - self.when


class _Sleeps:
    """How long threads slept before adbg itself had them woken: a tracer wakes every thread that it holds for a moment,
    and the kernel counts from there."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], _Slept] = {}
        self._lock = threading.Lock()

    def remember(self, pid: int, before: Sequence[OsThread], when: float, wakings: int) -> None:
        """The process is, or was, held: each of its threads up to ``wakings`` times."""
        with self._lock:
            for each in before:
                if each.sleeps and each.slept is not None:
                    self._known[pid, each.tid, each.started] = _Slept(each, when, wakings)

    def over(self, pid: int) -> None:
        """Nothing of adbg's wakes the threads of the process any more."""
        now = time.monotonic()
        with self._lock:
            for key, known in self._known.items():
                if key[0] == pid and known.until == math.inf:
                    self._known[key] = replace(known, until=now)

    def corrected(self, pid: int, threads: Sequence[OsThread]) -> list[OsThread]:
        found = []
        with self._lock:
            for thread in threads:
                known = self._known.get((pid, thread.tid, thread.started))
                if known is not None and thread.slept is not None:
                    slept = known.since(thread)
                    if slept is None:
                        del self._known[pid, thread.tid, thread.started]
                    else:
                        thread = replace(thread, slept=max(thread.slept, slept))
                found.append(thread)
        return found


_SLEEPS = _Sleeps()


def before_entering(pid: int) -> None:
    """adbg is about to get in, by stopping threads of the process: how long they sleep is read before."""
    when = time.monotonic()
    with contextlib.suppress(AdbgError):
        _SLEEPS.remember(pid, _SLEEPS.corrected(pid, threads_of(pid, 0)), when, _OF_AN_ENTRY)


def after_entering(pid: int) -> None:
    """adbg is in, or gave up, and stops no thread of the process any more."""
    _SLEEPS.over(pid)
