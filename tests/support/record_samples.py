"""Values as a process records them: a graph of three nodes, and a stop; and what a record holds, read without adbg."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from pathlib import Path

from adbg.engine.record.recorder import EdgeRow
from adbg.engine.types import Evidence, GraphRow, NodeInfo, NodeStop, Origin, Phase, Role, SourceLine, StopReason

STACK = [SourceLine("/me/model.py", 16, "forward"), SourceLine("/me/train.py", 88, "<module>")]
ROWS = [
    GraphRow(
        1,
        11,
        "BmmBackward0",
        "BmmBackward0#1",
        "todo",
        (2, 3),
        module="attn",
        forward=STACK[0],
        shape=(2, 4),
        dtype="f32",
    ),
    GraphRow(2, 12, "OuterBackward", "OuterBackward#1", "todo", (3,), custom=True, shape=()),
    GraphRow(3, 13, "AccumulateGrad", "AccumulateGrad#1", "todo", (), accumulate=True, parameter="w"),
]
EDGES: dict[int, list[EdgeRow]] = {1: [(0, 2, 0), (1, None, 0), (2, 3, 1)], 2: [(0, 3, 0)]}
STOP = NodeStop(
    reason=StopReason.NAN,
    phase=Phase.AFTER,
    thread=7,
    backward=1,
    index=2,
    total=3,
    depth=0,
    rank=0,
    breakpoints=(1, -2),
    node=NodeInfo(12, "OuterBackward", "OuterBackward#1"),
    enclosing=("A#1",),
    location=STACK[1],
    iteration=4,
    elapsed_us=41.5,
    evidence=(Evidence(Role.GRAD_INPUTS, "grad_inputs[0]", 8, 1, 0, Origin.MADE_HERE, slot=0),),
)


def nodes_ran(run: Path) -> list[tuple[int, int, str, float]]:
    """(backward, index, unique name, microseconds) of the nodes that ran to their end: those that were recorded one by
    one, then those in packed rows."""
    uri = f"file:{run}/events-r0.sqlite?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as base:
        found = base.execute("SELECT backward, idx, us FROM node_event WHERE phase = 'after' ORDER BY seq").fetchall()
        for backward, rows in base.execute("SELECT backward, rows FROM nodes_ran ORDER BY seq"):
            unpacked = struct.iter_unpack("<IIQdfHH", rows)
            found += [(backward, index, us) for _, index, _, _, us, flags, _ in unpacked if not flags & 4]
        source = dict(base.execute("SELECT backward, source FROM same_graph"))
        nodes = base.execute("SELECT backward, idx, unique_name FROM node")
        names = {(backward, idx): name for backward, idx, name in nodes}
    return [(number, idx, names.get((source.get(number, number), idx), ""), us) for number, idx, us in found]
