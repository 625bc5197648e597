"""Rows of the ledger in the crash journal: what a process called last, whatever killed it. gloo aborts a process whose
collective meets another one's (SIGABRT, from a thread of its own), a moment after the call: the record, to which rows
are handed four times a second, has no row of it then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base.collectives import (
    BACKWARD,
    BEGUN,
    DETAIL,
    DTYPE,
    FILE,
    FUNCTION,
    GROUP,
    ID,
    LINE,
    METHOD,
    NODE,
    SEQ,
    SHAPE,
    THREAD,
    LiveRow,
    short_dtype,
    short_reduce,
)
from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.types import SourceLine

_REDUCES: dict[Any, str] = {}
_MOST = 64


def kept_text(row: LiveRow) -> str:
    """One entry, its fields separated by TAB (2 us). May raise: the row goes without it."""
    method, group, shape = row[METHOD], row[GROUP], row[SHAPE]
    reduce, peer = method.tell(row[DETAIL])
    if reduce is not None:
        reduce = _named(getattr(reduce, "op", reduce))
    if isinstance(peer, int) and 0 <= peer < len(group.ranks):
        peer = group.ranks[peer]
    sizes = "" if shape is None else "x".join(map(str, shape)) or "."
    return (
        f"{row[ID]}\t{row[SEQ]}\t{method.op}\t{sizes}\t{row[DTYPE] or ''}\t{reduce or ''}\t"
        f"{'' if peer is None else peer}\t{row[LINE]}\t{row[THREAD]}\t{row[BACKWARD]}\t{row[BEGUN]}\t{row[NODE]}\t"
        f"{group.name}\t{_span(group.ranks)}\t{row[FUNCTION]}\t{row[FILE]}"
    )


def _named(reduce: Any) -> str:
    """The name of a reduce operator, an enumeration of C++'s: it is made once (1.6 us)."""
    name = _REDUCES.get(reduce)
    if name is None:
        name = short_reduce(reduce)
        if len(_REDUCES) < _MOST:
            _REDUCES[reduce] = name
    return name


def _span(ranks: Sequence[int]) -> str:
    """ "0-7"; "" of such as do not follow each other."""
    first, last = (ranks[0], ranks[-1]) if ranks else (0, -1)
    return f"{first}-{last}" if last - first + 1 == len(ranks) and len(ranks) > 0 else ""


def kept_row(fields: Sequence[str]) -> tuple[Collective, ProcessGroup] | None:
    """The row of an entry, and its group. Its state is "unknown": nothing is written when a collective ends. None: of
    another version."""
    try:
        id, seq, op, sizes, dtype, reduce, peer, line, thread, backward, begun, node, group, *rest = fields
        span, function, file = rest
        first, _, last = span.partition("-")
        row = Collective(
            id=int(id),
            group=group,
            seq=int(seq),
            op=op,
            shape=None if not sizes else tuple(int(each) for each in sizes.split("x") if each != "."),
            dtype=short_dtype(dtype or None),
            reduce=reduce,
            peer=int(peer) if peer else None,
            place=SourceLine(file, int(line), function) if file else None,
            thread=int(thread),
            node=node,
            backward=int(backward),
            begun=float(begun),
        )
        return row, ProcessGroup(group, list(range(int(first), int(last) + 1)) if span else [])
    except ValueError:
        return None
