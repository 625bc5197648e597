"""The ledger of collectives in the run directory: its rows written, and read again. A run of before schema 3 has
none."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from adbg.engine.protocol.messages import Collective
from adbg.engine.types import SourceLine

_COLUMNS = (
    "id, grp, seq, op, shape, dtype, reduce, peer, asynchronous, state, file, line, function, thread, node, backward,"
    " begun, ended, source"
)


def collective_row(row: Collective) -> tuple[Any, ...]:
    """Its row in the database; the same ``id`` again replaces it."""
    place = row.place
    return (
        row.id, row.group, row.seq, row.op, None if row.shape is None else json.dumps(row.shape), row.dtype, row.reduce,
        row.peer, row.asynchronous, row.state, place.file if place else "", place.line if place else 0,
        place.function if place else "", row.thread, row.node, row.backward, row.begun, row.ended, row.source,
    )  # fmt: skip


def read_collectives(db: sqlite3.Connection, last: int = 0) -> list[Collective]:
    """In order; ``last``: so many of the newest, 0 for all."""
    known = db.execute("SELECT count(*) FROM sqlite_master WHERE name='collective'").fetchone()[0]
    if not known:
        return []
    query = f"SELECT {_COLUMNS} FROM collective ORDER BY id DESC"
    rows = db.execute(query + (" LIMIT ?" if last else ""), (last,) if last else ()).fetchall()
    return [_value(row) for row in reversed(rows)]


def _value(row: Sequence[Any]) -> Collective:
    id, group, seq, op, shape, dtype, reduce, peer, asynchronous, state, file, line, function, *rest = row
    thread, node, backward, begun, ended, source = rest
    return Collective(
        id=id,
        group=group,
        seq=seq,
        op=op,
        shape=tuple(json.loads(shape)) if shape else None,
        dtype=dtype,
        reduce=reduce,
        peer=peer,
        asynchronous=bool(asynchronous),
        state=state,
        place=SourceLine(file, line, function) if file else None,
        thread=thread,
        node=node,
        backward=backward,
        begun=begun,
        ended=ended,
        source=source,
    )
