"""Which processes are the ranks of a job. Pure, over a table of ``processes.look``.

A rank is a Python process that a launcher told so (RANK, PADDLE_TRAINER_ID, OMPI_COMM_WORLD_RANK), or one with a
framework loaded below a parent that started it to train (``torch.multiprocessing.spawn`` tells its children nothing
that can be seen from outside). A DataLoader's worker has the environment of its rank, whose child it is; a launcher may
itself run with a RANK (its node's), but its ranks have others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil

from adbg.tui.attach.processes import Seen, Table

WORKERS = ("pt_data_worker", "pt_data_pin")  # torch's own names for a DataLoader's processes


def children_of(table: Table, pid: int) -> list[Seen]:
    return [seen for seen in table.values() if seen.parent == pid]


def below(table: Table, pid: int) -> Iterator[Seen]:
    """All descendants."""
    for child in children_of(table, pid):
        yield child
        yield from below(table, child.pid)


def ranks_of(table: Table, root: int) -> list[Seen]:
    """The ranks of the job that process ``root`` launched, or whose rank it is, by rank and number."""
    top = job_root(table, root)
    found = list(_ranks(table, top))
    if top != root and root in table:  # siblings below a shell may be another job's
        found = [seen for seen in found if seen.job == table[root].job]
    return sorted(found, key=lambda seen: (seen.rank is None, seen.rank or 0, seen.pid))


def job_root(table: Table, pid: int) -> int:
    """The process below which the job's ranks are: ``pid`` itself, or what launched the rank ``pid``."""
    if pid not in table or not _told(table[pid]) or _told_others(table, table[pid]):
        return pid
    top = table[pid]
    while top.parent in table and table[top.parent].place == top.place:
        top = table[top.parent]  # a shell between the launcher and Python
    siblings = [seen for seen in below(table, top.parent) if _told(seen) and seen.job == top.job]
    return top.parent if top.parent in table and len(siblings) > 1 else pid


def _told(seen: Seen) -> bool:
    return seen.rank is not None


def _told_others(table: Table, seen: Seen) -> bool:
    """It has a rank, but below it are Python processes with others: it is the launcher of a node."""
    return any(one.python and _told(one) and one.place != seen.place for one in below(table, seen.pid))


def _ranks(table: Table, root: int) -> Iterator[Seen]:
    """Of ``root`` and what is below it."""
    start = table.get(root)
    if start is None:
        return
    told = [start, *below(table, root)]
    if any(seen.python and _told(seen) for seen in told):
        yield from _told_ranks(table, start)
    else:
        yield from _silent_ranks(table, start)


def _told_ranks(table: Table, seen: Seen) -> Iterator[Seen]:
    if seen.python and _told(seen) and not _told_others(table, seen):
        yield seen  # what is below it are its workers
        return
    for child in children_of(table, seen.pid):
        yield from _told_ranks(table, child)


def _silent_ranks(table: Table, seen: Seen) -> Iterator[Seen]:
    """Without a word in any environment: the processes with a framework that have none below them but workers."""
    children = [child for child in children_of(table, seen.pid) if not _works_for(child, seen)]
    found = [rank for child in children for rank in _silent_ranks(table, child)]
    if found:
        yield from found
    elif seen.python and seen.frameworks:
        yield seen


def _works_for(child: Seen, parent: Seen) -> bool:
    """A child that ``parent`` has as a DataLoader's worker: torch names it so; else it is a fork of a process with a
    framework that talks to nobody but its parent, as a rank would."""
    if child.name in WORKERS:
        return True
    forked = child.command == parent.command and bool(parent.frameworks)
    return forked and not _own_connections(child.pid, parent.pid)


def _own_connections(pid: int, parent: int) -> bool:
    """Whether it has a TCP socket that it did not inherit."""
    return bool(_connections(pid) - _connections(parent))


def _connections(pid: int) -> set[tuple[object, object]]:
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        ask = getattr(process, "net_connections", None) or process.connections
        return {(one.laddr, one.raddr) for one in ask("tcp")}
    return set()
