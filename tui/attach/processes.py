"""The user's Python processes, as ``adbg attach`` without a number shows them. Any thread; nothing is touched."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import psutil

from adbg.engine.attach.target import examine
from adbg.engine.errors import AdbgError

SETTLES = 120.0  # seconds of age after which no framework is expected any more
SAMPLE = 0.2  # seconds over which the CPU share is measured
FRAMEWORK_FILES = {"libtorch": "torch", "libpaddle": "paddle", "mindspore": "mindspore"}  # of mapped files' names
RANKS = ("RANK", "PADDLE_TRAINER_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOCAL_RANKS = ("LOCAL_RANK", "PADDLE_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
JOBS = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PADDLE_MASTER", "PADDLE_JOB_ID", "PMIX_NAMESPACE")
_OWN = re.compile(r"/engine/(launch/keeper|log/forwarder|attach/)")
_AIDES = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker", "multiprocessing.forkserver")
_PYTHON = re.compile(r"python[\d.]*t?$|pypy")


@dataclass(frozen=True)
class Seen:
    """One process.

    Attributes:
        name: as the kernel calls it, 15 characters.
        python: an interpreter runs in it.
        environment: those of its variables that tell ranks and jobs apart, as they were when it began.
        frameworks: those whose libraries it has loaded.
        cpu: per cent of one core over the last ``SAMPLE`` seconds.
        began, age: time of its begin, seconds since.
        state: psutil's word.
        obstacle: why adbg cannot get in, "" when it can.
    """

    pid: int
    parent: int
    command: tuple[str, ...] = ()
    name: str = ""
    python: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    frameworks: tuple[str, ...] = ()
    cpu: float = 0.0
    memory: int = 0
    began: float = 0.0
    age: float = 0.0
    state: str = ""
    obstacle: str = ""

    @property
    def rank(self) -> int | None:
        """As the launcher told it; None where none did."""
        return next((int(self.environment[n]) for n in RANKS if self.environment.get(n, "").isdigit()), None)

    @property
    def settled(self) -> bool:
        """It has loaded what it trains with, or has had the time to."""
        return bool(self.frameworks) or time.time() - self.began > SETTLES

    @property
    def place(self) -> tuple[str, ...]:
        """Which rank of its job it is, in all that launchers say about it."""
        return tuple(self.environment.get(name, "") for name in (*RANKS, *LOCAL_RANKS))

    @property
    def job(self) -> tuple[str, ...]:
        """Equal in all ranks of a job."""
        return tuple(self.environment.get(name, "") for name in JOBS)


Table = dict[int, Seen]


def look(known: Table | None = None, user: int | None = None) -> Table:
    """Every process of ``user`` (default: who runs adbg), by number; CPU and obstacles are not asked for. ``known``: an
    earlier table; what cannot have changed is taken from there."""
    user = os.getuid() if user is None else user
    table: Table = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            seen = (known or {}).get(process.pid)
            if seen is not None and seen.began == process.create_time() and (seen.settled or not seen.python):
                table[process.pid] = replace(seen, parent=process.ppid(), state=process.status())
            elif process.uids().real == user and process.status() != psutil.STATUS_ZOMBIE:
                command = tuple(process.cmdline())
                if command:  # else of the kernel
                    table[process.pid] = _seen(process, command)
    return table


def _seen(process: psutil.Process, command: tuple[str, ...]) -> Seen:
    files = mapped_files(process.pid)
    python = _runs_python(process, files)
    began = process.create_time()
    return Seen(
        pid=process.pid,
        parent=process.ppid(),
        command=command,
        name=process.name(),
        python=python,
        environment=_environment(process),
        frameworks=frameworks_in(files) if python else (),
        memory=process.memory_info().rss,
        began=began,
        age=max(time.time() - began, 0.0),
        state=process.status(),
    )


def command_of(pid: int) -> list[str]:
    """Its command line, [] where that cannot be read."""
    try:
        return list(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return []


def _runs_python(process: psutil.Process, files: Iterable[str]) -> bool:
    try:
        program = os.path.basename(process.exe())
    except psutil.Error:
        return False
    return bool(_PYTHON.match(program)) or any(name.startswith("libpython") for name in files)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        everything = process.environ()
    except (psutil.Error, OSError):
        return {}
    return {name: everything[name] for name in (*RANKS, *LOCAL_RANKS, *JOBS) if name in everything}


def mapped_files(pid: int) -> frozenset[str]:
    """Base names of the files that it has mapped; none where that cannot be read."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line[start:].strip() for line in maps if (start := line.find("/")) >= 0}
    except OSError:
        return frozenset()
    return frozenset(path.rpartition("/")[2] for path in paths)


def frameworks_in(files: Iterable[str]) -> tuple[str, ...]:
    """Those whose library is among the names of files."""
    found = {
        framework
        for name in files
        for start, framework in FRAMEWORK_FILES.items()
        if name.startswith((start, f"lib{start}", f"_c_{start}"))
    }
    return tuple(sorted(found))


def own_processes(table: Table) -> set[int]:
    """This adbg, what it runs in, other adbgs and what belongs to them, and the aides of ``multiprocessing``."""
    own = {pid for pid, seen in table.items() if _belongs_to_adbg(seen.command) or _aide(seen.command)}
    pid = os.getpid()
    while pid:
        own.add(pid)
        pid = table[pid].parent if pid in table else 0
    return own


def _belongs_to_adbg(command: tuple[str, ...]) -> bool:
    words = command[1:6]
    module = any(word == "-m" and words[place + 1 : place + 2] == ("adbg",) for place, word in enumerate(words))
    return module or any(os.path.basename(word.rstrip("/")) == "adbg" or _OWN.search(word) for word in words[:4])


def _aide(command: tuple[str, ...]) -> bool:
    return any(name in word for word in command[1:5] for name in _AIDES)


def offered(table: Table) -> list[Seen]:
    """The Python processes that a user may mean, with CPU and obstacles; takes ``SAMPLE`` seconds."""
    own = own_processes(table)
    rows = [seen for pid, seen in table.items() if seen.python and pid not in own]
    shares = cpu_shares([seen.pid for seen in rows])
    return [replace(seen, cpu=shares.get(seen.pid, 0.0), obstacle=obstacle_of(seen.pid)) for seen in rows]


def obstacle_of(pid: int) -> str:
    """Why adbg cannot get into it, "" when it can."""
    try:
        examine(pid)
    except AdbgError as error:
        return error.message
    return ""


def cpu_shares(pids: Iterable[int], seconds: float = SAMPLE) -> dict[int, float]:
    """Per cent of one core that each used over ``seconds``."""
    watched = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            process.cpu_percent(None)
            watched.append(process)
    if watched:
        time.sleep(seconds)
    shares = {}
    for process in watched:
        with contextlib.suppress(psutil.Error):
            shares[process.pid] = process.cpu_percent(None)
    return shares


def as_tree(rows: Iterable[Seen], table: Table) -> Iterator[tuple[int, Seen]]:
    """(depth, process), children behind their parents; what lies between two of ``rows`` (a shell, say) is skipped."""
    shown = {seen.pid: seen for seen in rows}
    children: dict[int, list[Seen]] = {}
    for seen in shown.values():
        children.setdefault(_nearest(seen, shown, table), []).append(seen)

    def below(pid: int, depth: int) -> Iterator[tuple[int, Seen]]:
        for seen in sorted(children.get(pid, ()), key=lambda one: (one.rank is None, one.rank or 0, one.pid)):
            yield depth, seen
            yield from below(seen.pid, depth + 1)

    return below(0, 0)


def _nearest(seen: Seen, shown: Table, table: Table) -> int:
    """The closest ancestor that is shown, 0 for none."""
    pid, met = seen.parent, {seen.pid}
    while pid in table and pid not in met:
        if pid in shown:
            return pid
        met.add(pid)
        pid = table[pid].parent
    return 0
