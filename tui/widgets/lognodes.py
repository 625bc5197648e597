"""From a record of the log to its node in the graph, and back. Pure; UI thread.

adbg's own records have the node's index. Paddle's have a pointer, which the graph does not know: there a node is the
n-th of its name that ran.
"""

from __future__ import annotations

import re

from adbg.tui.widgets.graphmodel import GraphModel

_ORDINAL = re.compile(r"\d+(?=GradNode$)")


def node_index(model: GraphModel, name: str, index: int, occurrence: int) -> int:
    """Index in the graph of the node that a record names; 0 when it is not there."""
    if index:
        row = model.rows.get(index)
        return index if row is not None and plain_name(row.name) == plain_name(name) else 0
    count = 0
    for at in sorted(model.rows):
        if plain_name(model.rows[at].name) == plain_name(name):
            count += 1
            if count == occurrence:
                return at
    return 0


def occurrence_of(model: GraphModel, index: int) -> int:
    """Which of the nodes with its name node ``index`` is, in execution order; from 1."""
    name = plain_name(model.rows[index].name)
    return sum(1 for at, row in model.rows.items() if at <= index and plain_name(row.name) == name)


def plain_name(name: str) -> str:
    """Without the ordinal of level 6: "mean1GradNode" and "MeanGradNode" are one."""
    return _ORDINAL.sub("", name).lower()
