"""What a breakpoint that no node of the whole run took says at the end of it."""

from __future__ import annotations

import pytest
from fake_backend import FakeGraph

from adbg.engine.protocol.messages import BreakpointRequest
from adbg.engine.session.breakpoints.grammar import parse_spec
from adbg.engine.session.breakpoints.matching import unmatched_name
from adbg.engine.session.breakpoints.table import BreakpointTable

NAMES = ["AddmmBackward0", "TanhBackward0"]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("Thanh", "no node was named 'Thanh'; closest: TanhBackward0"),
        ("Qqqq", "no node was named 'Qqqq'; names there: AddmmBackward0, TanhBackward0"),
        ("nna", "no node was named 'nna'; closest: the breakpoint `nan`"),
        ("Tanh if index > 99", ""),
        ("tanh", ""),
        ("Tanh#7", ""),
        ("#99", ""),
        ("param:nope", ""),
        ("nan", ""),
    ],
)
def test_the_message(spec: str, wanted: str) -> None:
    assert unmatched_name(parse_spec(spec), NAMES) == wanted
    assert unmatched_name(parse_spec(spec), []) == ""


def test_the_table_learns_names_from_the_graphs_it_hooks() -> None:
    table = BreakpointTable()
    table.replace([BreakpointRequest("Mull", 1), BreakpointRequest("Mul", 2)])
    assert table.unmatched() == [], "no graph was seen"
    plan = table.plan()
    assert plan.name is not None
    graph = FakeGraph.chain(4)
    for name in graph.names():
        plan.name(name)
    (state,) = table.unmatched()
    assert state.id == 1 and "closest: Mul" in state.message
