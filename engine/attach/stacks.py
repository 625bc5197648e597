"""What /proc tells of the threads of a process: state, system call, how long they sleep, whether they burn CPU.

Reads only: the process is not stopped and nothing of it is touched. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from adbg.engine.attach.stacks_callers import Callers
from adbg.engine.attach.syscalls import NOT_RESTARTED, syscall_name
from adbg.engine.errors import CommandError

GAP = 0.1  # seconds between two looks: ten ticks of the clock that counts a thread's CPU time
_WAITS = (("nanosleep", "clock_nanosleep"), ("futex", "futex"), ("poll", "poll"))  # kernel function -> system call
# Python itself (PEP 475), and the loops of gloo and libuv in the frameworks' libraries: all call again after EINTR.
_CALL_AGAIN = (
    "libpython", "python", "select.cpython", "libtorch", "libc10", "libphi", "libpaddle", "libgloo", "libuv",
)  # fmt: skip
_SLEEPING = ("S", "D", "I")


@dataclass(frozen=True, slots=True)
class OsThread:
    """One thread as the kernel sees it."""

    tid: int
    name: str  # as the kernel has it: 15 characters
    state: str  # "R" runs, "S" sleeps, "D" sleeps uninterruptibly, "T" stopped, "t" traced, "Z" ended
    syscall: str  # "futex"; "" while it runs its own code, or where this user may not ask
    wchan: str  # the kernel function that it sleeps in; "" where the kernel does not tell
    cpu: float | None  # share of a CPU between two looks, 0 to 1; None where there was one look only
    cpu_seconds: float  # since the thread began
    slept: float | None  # seconds since it last ran; None while it runs, or where the kernel does not tell
    switches: int  # how often it gave up the CPU by itself
    woke: int  # of these, between two looks
    library: str  # the innermost library on its stack above the C library; "" while it runs, or where nobody tells
    started: int  # ticks after boot: with ``tid``, which thread this is

    @property
    def sleeps(self) -> bool:
        return self.state in _SLEEPING

    @property
    def disturbed_by_a_halt(self) -> bool:
        """Whether its system call would return EINTR after a debugger has held the thread, to code that is not known to
        expect it."""
        return self.syscall in NOT_RESTARTED and not self.library.startswith(_CALL_AGAIN)


def threads_of(pid: int, gap: float = GAP, proc: str = "/proc") -> list[OsThread]:
    """The threads of ``pid``, the first one first. ``gap``: seconds between two looks, 0 for one look.

    Raises:
        CommandError: there is no such process, or it cannot be read.
    """
    first = _look(pid, proc)
    if not gap:
        return list(first.values())
    begun = time.monotonic()
    time.sleep(gap)
    second = _look(pid, proc)
    spent = max(time.monotonic() - begun, 1e-3)
    return [_since(first.get(now.tid), now, spent) for now in second.values()]


def _since(before: OsThread | None, now: OsThread, spent: float) -> OsThread:
    if before is None or before.started != now.started:
        return now
    share = min(max(now.cpu_seconds - before.cpu_seconds, 0.0) / spent, 1.0)
    return replace(now, cpu=share, woke=now.switches - before.switches)


def _look(pid: int, proc: str) -> dict[int, OsThread]:
    folder = f"{proc}/{pid}/task"
    try:
        tids = sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except (FileNotFoundError, ProcessLookupError):
        raise CommandError(f"there is no process {pid} any more", "it ended: its output says how") from None
    except OSError as error:
        raise CommandError(f"the threads of process {pid} cannot be read: {error.strerror}") from None
    machine = os.uname().machine
    clocks = _Clocks(proc)
    callers = Callers(pid, proc)
    found = {}
    for tid in tids:
        thread = _thread(f"{folder}/{tid}", tid, machine, clocks, callers)
        if thread is not None:
            found[tid] = thread
    return found


def _thread(folder: str, tid: int, machine: str, clocks: _Clocks, callers: Callers) -> OsThread | None:
    """None for one that ended meanwhile."""
    stat = _read(f"{folder}/stat")
    opened, closed = stat.find("("), stat.rfind(")")
    fields = stat[closed + 1 :].split()
    if opened < 0 or len(fields) < 20:
        return None
    state = fields[0]
    ticks = os.sysconf("SC_CLK_TCK")
    sched = dict(_pairs(f"{folder}/sched"))
    slept = None
    ran = _number(sched.get("se.exec_start", "")) if state in _SLEEPING and len(fields) > 36 else None
    if ran is not None and (now := clocks.of(int(fields[36]))) is not None:
        slept = max((now - ran) / 1e3, 0.0)
    wchan = _read(f"{folder}/wchan").strip("\n0")
    ran_ms = _number(sched.get("se.sum_exec_runtime", ""))
    return OsThread(
        tid=tid,
        name=stat[opened + 1 : closed],
        state=state,
        syscall=_restarted(_syscall(_read(f"{folder}/syscall"), machine), wchan),
        wchan=wchan,
        cpu=None,
        cpu_seconds=ran_ms / 1e3 if ran_ms else (int(fields[11]) + int(fields[12])) / ticks,
        slept=slept,
        switches=int(_number(dict(_pairs(f"{folder}/status")).get("voluntary_ctxt_switches", "")) or 0),
        woke=0,
        library=callers.library(tid) if state in _SLEEPING else "",
        started=int(fields[19]),
    )


class _Clocks:
    """The scheduler's clock of each processor, in ms: they are up to seconds apart (what a processor spent on
    interrupts, or lent to other machines, is left out), and no file has them. A thread that has just begun to run tells
    that of its processor, so this one goes to each for a moment."""

    def __init__(self, proc: str) -> None:
        self._path = f"{proc}/thread-self/sched"
        self._known: dict[int, float | None] = {}

    def of(self, processor: int) -> float | None:
        """None where the kernel does not tell."""
        if processor not in self._known:
            self._known[processor] = self._ask(processor)
        return self._known[processor]

    def _ask(self, processor: int) -> float | None:
        try:
            mine = os.sched_getaffinity(0)
            os.sched_setaffinity(0, (processor,))  # of this thread alone
        except OSError:  # it may not run there
            return None
        try:
            os.sched_yield()
            return _number(dict(_pairs(self._path)).get("se.exec_start", ""))
        finally:
            os.sched_setaffinity(0, mine)


def _syscall(text: str, machine: str) -> str:
    number = text.partition(" ")[0].strip()
    return syscall_name(int(number), machine) if number.isdigit() else ""


def _restarted(name: str, wchan: str) -> str:
    """A wait with a time-out that was interrupted (by a tracer) goes on as ``restart_syscall``: what it was before."""
    if name != "restart_syscall":
        return name
    return next((call for part, call in _WAITS if part in wchan), name)


def _pairs(path: str) -> Iterator[tuple[str, str]]:
    for line in _read(path).splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _read(path: str) -> str:
    """ "" where it is not there, or not for this user."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
