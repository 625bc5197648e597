"""Where the ranks of a job stand: each is looked at twice, a moment apart, and the looks are compared."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import AdbgError
from adbg.engine.hang.values import HangVerdict, Life, RankFacts
from adbg.engine.hang.verdict import judge
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import ExitStatus
from adbg.tui.text.formatting import exit_text

if TYPE_CHECKING:
    from adbg.tui.debugger.process import Process

APART = 1.0  # seconds between the looks
ANSWER = 5.0  # seconds for an answer: where the GIL is held none comes
ENDS = 1.0  # seconds: a process closes its connection a moment before it ends


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    import psutil  # a checkout without it runs scripts all the same

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def verdict_on(processes: Sequence[Process], status: ExitStatus | None, apart: float = APART) -> HangVerdict:
    """Why these processes hang. ``status``: see ``look_twice``."""
    verdict = judge(look_twice(processes, apart, status))
    return replace(verdict, timeout=_in_force(processes, verdict))


def _in_force(processes: Sequence[Process], verdict: HangVerdict) -> float | None:
    """Seconds after which the collective that waits longest gives up: it keeps the time-out that it began with, and
    the debugger may have raised its group's since then."""
    waiting = [each for each in verdict.standings if each.waits is not None]
    if verdict.timeout is None or not waiting:
        return verdict.timeout
    longest = max(waiting, key=lambda each: each.seconds or 0.0)
    process = next((each for each in processes if each.info.pid == longest.pid), None)
    if process is None or not process.timeout_held:
        return verdict.timeout
    assert longest.waits is not None
    looked = time.monotonic()
    try:
        known = process.client.request(protocol.GroupTimeouts(), ANSWER).timeouts
    except AdbgError:
        return None
    rows = [row for row in known if row.group == longest.waits.group] or known
    waited = math.inf if longest.seconds is None else longest.seconds + time.monotonic() - looked
    return min((row.of_one_begun(waited) for row in rows), default=verdict.timeout)


def look_twice(processes: Sequence[Process], apart: float, status: ExitStatus | None = None) -> list[RankFacts]:
    """What is known of each rank. All are asked at the same time. ``status``: how the process ended that the debugger
    started."""
    alive = [process for process in processes if process.alive]
    with ThreadPoolExecutor(max(1, len(alive)), "adbg-look") as pool:
        before = list(pool.map(lambda process: _ask(process, history=False), alive))
        time.sleep(apart)
        after = list(pool.map(lambda process: _ask(process, history=True), alive))
    looks = {process.number: (first, second) for process, first, second in zip(alive, before, after)}
    found: dict[int, tuple[Process, Any, Any]] = {}
    unknown: list[tuple[Process, Any, Any]] = []  # in a group, and of no rank that is known
    for process in processes:
        first, second = looks.get(process.number, (None, None))
        rank = second.rank if second is not None and second.rank is not None else process.info.rank
        if rank is None and (second is None or not second.groups):
            continue
        if rank is None:
            unknown.append((process, first, second))
            continue
        known = found.get(rank)
        if known is None or _speaks_for(process, second) > _speaks_for(known[0], known[2]):
            found[rank] = (process, first, second)
    if not found and len(unknown) == 1:
        found[0] = unknown[0]
    if not found and alive:
        process = alive[0]
        found[0] = (process, *looks[process.number])
    return [_facts(rank, *each, status) for rank, each in sorted(found.items())]


def _speaks_for(process: Process, body: protocol.CollectivesBody | None) -> tuple[bool, bool, bool]:
    """Of two processes with one rank (a data loader's worker has its parent's), the one that is the rank itself."""
    return body is not None and bool(body.groups), process.alive, bool(process.frameworks)


def _ask(process: Process, history: bool) -> protocol.CollectivesBody | None:
    try:
        body: protocol.CollectivesBody = process.client.request(protocol.Collectives(2000, history), ANSWER)
    except AdbgError:
        return None
    return body


def _end_of(process: Process) -> Life:
    """A lost connection alone tells nothing of the process: let go, it may run on."""
    if process.said_end:
        return Life.ENDED
    limit = time.monotonic() + ENDS
    while process.here:
        if not lives(process.info.pid):
            return Life.DIED
        if time.monotonic() > limit:
            break
        time.sleep(0.05)
    return Life.LOST


def _facts(rank: int, process: Process, before: Any, after: Any, status: ExitStatus | None) -> RankFacts:
    """``status``: of the process that the debugger started."""
    how = ""
    if status is not None and not status.reason and process.main and not process.alive:
        how = exit_text(status)
    if not process.alive:
        life = _end_of(process)
    elif after is None:
        life = Life.SILENT
    else:
        life = Life.STOPPED if process.stop is not None else Life.RUNNING
    return RankFacts(rank, life, process.info.pid, after, before, how)
