"""The first place at which the ledgers of two ranks differ, and how often ranks called a line."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from adbg.engine.hang.values import Divergence
from adbg.engine.protocol.messages import Collective

#: What gloo makes of an operation shows in torch's flight recorder instead of it.
_MADE_OF = {"reduce_scatter": "all_reduce"}
_REDUCES = ("all_reduce", "reduce", "reduce_scatter")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_SAME_SIZE = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
_UNEVEN = ("all_gather", "reduce_scatter")  # gloo wants parts of one size, NCCL does not
_PASSED = ("done", "issued", "unknown")  # a rank is not held in it


def family(op: str) -> str:
    """The operation that forms of it share: "all_gather" of "all_gather_into_tensor"."""
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "alltoall"):
        if op.startswith(name):
            return "all_to_all" if name == "alltoall" else name
    return op


def differences(a: Collective, b: Collective) -> tuple[str, ...]:
    """In what two ranks' rows of one collective differ that must be the same on all."""
    kind, other = family(a.op), family(b.op)
    if a.source != b.source:
        kind, other = _MADE_OF.get(kind, kind), _MADE_OF.get(other, other)
    if kind != other:
        return ("op",)
    found = []
    if kind in _SAME_SIZE and a.shape is not None and b.shape is not None and a.source == b.source:
        if math.prod(a.shape) != math.prod(b.shape):
            found.append("shape")
        if a.dtype and b.dtype and a.dtype != b.dtype:
            found.append("dtype")
    if kind in _REDUCES and a.reduce and b.reduce and a.reduce != b.reduce:
        found.append("reduce")
    if kind in _ROOTED and a.peer is not None and b.peer is not None and a.peer != b.peer:
        found.append("peer")
    return tuple(found)


def by_number(rows: Sequence[Collective], group: str) -> dict[int, Collective]:
    return {row.seq: row for row in rows if row.group == group and row.seq}


def first_divergence(
    ledgers: Mapping[int, Sequence[Collective]], group: str, everyone: Collection[int] = ()
) -> Divergence | None:
    """``ledgers``: rows by rank; ``everyone``: the group's ranks, as far as they are known. None: as far as their rows
    are known they are the same."""
    numbered = {rank: by_number(rows, group) for rank, rows in ledgers.items()}
    for seq in sorted({seq for rows in numbered.values() for seq in rows}):
        here = {rank: rows[seq] for rank, rows in numbered.items() if seq in rows}
        first = next(iter(here.values()))
        differ = {name for row in here.values() for name in differences(first, row)}
        if differ == {"shape"} and family(first.op) in _UNEVEN:
            absent = any(max(numbered.get(rank, ()), default=0) < seq for rank in everyone)
            if absent or is_over(here.values()):
                continue
        if differ:
            return Divergence(group, seq, tuple(sorted(differ)), here)
    return None


def may_be_uneven(divergence: Divergence) -> bool:
    """They differ in what some backends allow."""
    return divergence.differ == ("shape",) and all(family(row.op) in _UNEVEN for row in divergence.rows.values())


def is_over(rows: Iterable[Collective]) -> bool:
    """No rank is held in it."""
    return all(row.state in _PASSED for row in rows)


def covered_from(ledgers: Iterable[Sequence[Collective]], group: str) -> int:
    """The number of a group from which on every ledger has its rows."""
    return max((min(by_number(rows, group), default=1) for rows in ledgers), default=1)


def calls_of_line(rows: Sequence[Collective], like: Collective, start: int) -> int:
    """How often a rank called that operation on that line, from number ``start`` on."""
    return sum(
        row.op == like.op and row.place == like.place and row.group == like.group and row.seq >= start for row in rows
    )


def uneven(
    divergence: Divergence, ledgers: Mapping[int, Sequence[Collective]]
) -> tuple[Collective, dict[int, int], int]:
    """Whether the ranks diverge because one of them called a line once more than the others, who went on to what comes
    behind: that line's row, the number of calls by rank, and from which number they are counted; no calls where it is
    not so."""
    known = {rank: ledgers[rank] for rank in divergence.rows}
    start = covered_from(known.values(), divergence.group)
    for rank, row in divergence.rows.items():
        if row.place is None:
            continue
        calls = {each: calls_of_line(rows, row, start) for each, rows in known.items()}
        others = [number for each, number in calls.items() if each != rank]
        elsewhere = [other.place != row.place for each, other in divergence.rows.items() if each != rank]
        if others and max(others) < calls[rank] and min(others) > 0 and any(elsewhere):
            return row, calls, start
    return next(iter(divergence.rows.values())), {}, start
