"""What measuring nodes costs, by what the calls take that are not measured, and times without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adbg.engine.median import median
from adbg.profiles.profilers.step_clock import PHASES

NodeKey = tuple[str, int, str]  # line of the backward call, index in the execution order, name


class NodeTimes:
    """One node, over all calls that were measured."""

    __slots__ = ("calls", "cold", "facts", "forward", "gaps", "inner", "total", "us")

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.cold = True  # of the first call alone
        self.calls = 0
        self.inner = 0  # nodes that were measured inside it, of backward calls that it made
        self.total = 0.0
        self.us: list[float] = []
        self.gaps: list[float] = []
        self.forward: list[float] = []  # us of the operator that made it, where that was timed


def costs(
    iterations: Sequence[Mapping[str, Any]], rows: Mapping[NodeKey, NodeTimes], behind: Sequence[int]
) -> dict[str, dict[str, float]]:
    """By line of the backward call: what measuring a node costs there, in microseconds. "inside" its time, in the
    gap before it, and in all, from what measured and plain calls take; 0 where there are none to compare.

    Args:
        behind: nanoseconds of adbg's own behind the begin of nodes; empty where none was in their times.
    """
    inside = median(behind) / 1000 if behind else 0.0
    found = {}
    for place in {row["place"] for row in iterations}:
        mine = [row for row in iterations if row["place"] == place]
        # the first hooked call of a line also describes its nodes, and warms up what they use
        hooked = [row for row in mine if row["hooked"] and row["nodes"]]
        hooked = [row for row in hooked if not row["cold"]] or hooked
        plain = [row["backward_us"] for row in mine if not row["hooked"]]
        cost = found[place] = {
            "inside_us": inside, "gap_us": 0.0, "node_us": 0.0, "hooked": len(hooked), "plain": len(plain),
        }  # fmt: skip
        if hooked and plain:
            longer = median(row["backward_us"] for row in hooked) - median(plain)
            cost["node_us"] = max(longer, 0.0) / median(row["nodes"] for row in hooked)
            cost["plain_us"] = median(plain)
            cost["gap_us"] = _gap_cost(rows, place, inside, cost["plain_us"], len(hooked))
    return found


def _gap_cost(rows: Mapping[NodeKey, NodeTimes], place: str, inside: float, plain: float, calls: int) -> float:
    """How much to take off every gap, so that nodes and gaps of one call take ``plain`` microseconds."""
    nodes, gaps = 0.0, []
    mine = [(index, row) for (where, index, _), row in rows.items() if where == place]
    cold = all(row.cold for _, row in mine)
    for index, row in mine:
        if row.cold is cold and row.facts["depth"] == 0:
            share = row.calls / calls
            nodes += share * (median(row.us) - inside)
            if index > 1:
                gaps.append((median(row.gaps), share))
    rest = max(plain - nodes, 0.0)
    low, high = 0.0, max((gap for gap, _ in gaps), default=0.0)
    for _ in range(40):
        middle = (low + high) / 2
        left = sum(share * max(gap - middle, 0.0) for gap, share in gaps)
        low, high = (middle, high) if left > rest else (low, middle)
    return high


def without_own(row: dict[str, Any], costs: dict[str, dict[str, float]], seen: set[str]) -> dict[str, Any]:
    """An iteration, without what its hooks cost; null for a phase that was never seen."""
    row = {**row, **{name + "_us": None for name in PHASES if name not in seen}}
    own_us = costs[row["place"]]["node_us"] * row["nodes"]
    return {**row, "backward_us": max(row["backward_us"] - own_us, 0.0), "raw_backward_us": row["backward_us"]}
