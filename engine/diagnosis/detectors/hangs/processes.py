"""Processes below this one, and what they wait for, as the system tells it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from adbg.engine.outside import suppress
from adbg.engine.proc import PROC, Proc
from adbg.engine.session.stopped_mark import is_stopped

# Functions of Linux that a thread sleeps in (/proc/PID/task/TID/wchan). A lock, a pipe, a socket within the machine,
# the end of a process: what another process has to do. Of ``poll`` it is not known.
_BLOCKED = ("futex", "anon_pipe", "pipe_", "unix_", "do_wait", "kernel_wait", "sem")
_POLLS = ("do_poll", "poll_", "do_sys_poll", "ep_poll", "do_select", "do_epoll")


@dataclass(frozen=True, slots=True)
class Process:
    """``spent``: CPU seconds so far. ``waits``: by thread, the main one first, what it sleeps in; "" where it runs.
    ``stopped``: a thread of it stands in the debugger."""

    spent: float
    waits: tuple[str, ...]
    stopped: bool = False

    @property
    def writes(self) -> bool:
        """A thread of it waits for a reader of the pipe that it has filled (64 KiB): what feeds a queue does."""
        return any("pipe_write" in each for each in self.waits)


def processes() -> dict[int, Process] | None:
    """By pid, every process below this one, without those that have ended; None where the system does not tell."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    try:
        pids = [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]
    except OSError:
        return None
    for pid in pids:
        with suppress(OSError):  # it has ended
            if (found := Proc(pid).runs()) is not None:
                parents[pid], spent[pid] = found
    here = os.getpid()
    below = [pid for pid in parents if pid != here and _is_below(pid, here, parents)]
    return {pid: Process(spent[pid], _waits(pid), _stopped(pid)) for pid in below}


def _stopped(pid: int) -> bool:
    with suppress(OSError):
        return is_stopped(pid)
    return False


def _is_below(pid: int, here: int, parents: Mapping[int, int]) -> bool:
    above: int | None = pid
    while above is not None and above != here:
        above = parents.get(above)
    return above == here


def _waits(pid: int) -> tuple[str, ...]:
    process = Proc(pid)
    try:
        return tuple(process.waits_in(thread) for thread in process.threads())
    except OSError:
        return ()


def rest(before: Mapping[int, Process], now: Mapping[int, Process], most: float) -> bool:
    """Whether none of them went on in between, for each waits for another process of this machine: those that began
    or ended meanwhile count as going on, and so does what sleeps or waits for a network, and what the debugger has
    stopped. ``most``: CPU seconds."""
    if any(each.stopped for each in (*before.values(), *now.values())):
        return False
    if before.keys() != now.keys() or sum(each.spent - before[pid].spent for pid, each in now.items()) > most:
        return False
    mains = [each.waits[0] if each.waits else "" for each in now.values()]
    known = all(each.startswith((*_BLOCKED, *_POLLS)) for process in now.values() for each in process.waits)
    return known and all(mains) and (not mains or any(each.startswith(_BLOCKED) for each in mains))
