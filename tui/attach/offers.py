"""What ``adbg attach`` without a number offers: rows of a table, launchers above their ranks. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adbg.tui.attach.jobs import WORKERS, ranks_of
from adbg.tui.attach.processes import Seen, Table, as_tree, look, offered
from adbg.tui.text.attach import COLUMNS, aligned, launches, process_cells, script_of


@dataclass(frozen=True)
class Offer:
    """One row. ``job``: picking it means all ranks below it, which are ``ranks``; ``depth``: below its launcher."""

    seen: Seen
    program: str
    depth: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def job(self) -> bool:
        return bool(self.ranks)

    @property
    def obstacle(self) -> str:
        """Why it cannot be picked; a launcher itself is never entered."""
        return "" if self.job else self.seen.obstacle

    @property
    def cells(self) -> tuple[str, ...]:
        seen = self.seen
        count = len(self.ranks)
        job = f"   [job of {count} rank{'s' * (count != 1)}]" if self.job else ""
        return process_cells(
            seen.pid,
            seen.rank,
            seen.frameworks,
            seen.cpu,
            seen.memory,
            seen.age,
            seen.state,
            self.program + job,
            self.depth,
        )


def offers() -> list[Offer]:
    """What runs now; takes a fifth of a second."""
    table = look()
    seen = {one.pid: one for one in offered(table) if one.name not in WORKERS}
    jobs = {pid: ranks for pid in [*seen, *_launchers(table)] if (ranks := _ranks_below(table, pid))}
    rows = [*seen.values(), *(table[pid] for pid in jobs if pid not in seen)]
    return [Offer(one, script_of(one.command), depth, jobs.get(one.pid, ())) for depth, one in as_tree(rows, table)]


def _launchers(table: Table) -> list[int]:
    """Those that are not Python: mpirun."""
    return [pid for pid, seen in table.items() if not seen.python and launches(seen.command)]


def _ranks_below(table: Table, pid: int) -> tuple[int, ...]:
    """() where it is a rank itself; of one that is not known as a launcher also where there is one child that trains
    (a script that starts another)."""
    ranks = tuple(seen.pid for seen in ranks_of(table, pid))
    if len(ranks) < 2 and not launches(table[pid].command):
        return ()
    return ranks if all(_is_above(table, pid, rank) for rank in ranks) else ()


def _is_above(table: Table, pid: int, other: int) -> bool:
    at = table[other].parent
    while at in table:
        if at == pid:
            return True
        at = table[at].parent
    return False


def lines_of(rows: Sequence[Offer], width: int = 0) -> list[str]:
    """The head of the table and one line for each row; what cannot be picked says why in a line below it."""
    head, *lines = aligned([COLUMNS, *(row.cells for row in rows)], width)
    out = [head]
    for row, line in zip(rows, lines):
        out.append(line)
        if row.obstacle:
            out.append(f"{'':>{len(line) - len(line.lstrip())}}  not possible: {row.obstacle}")
    return out
