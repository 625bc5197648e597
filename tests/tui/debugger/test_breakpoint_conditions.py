"""``condition N EXPR`` takes the place of the condition that a breakpoint was typed with."""

from __future__ import annotations

import pytest

from adbg.engine.session.breakpoints.grammar import parse_spec
from adbg.tui.debugger.breakpoint_list import BreakpointList, without_condition

SPECS = {
    "Bmm* after if norm(grad_outputs[0]) > 1 every 10": "Bmm* after every 10",
    "Sqrt if index > 3": "Sqrt",
    "Sqrt#1 if (a if b else after) backward 7 rank 0": "Sqrt#1 backward 7 rank 0",
    "model.py:10 if every": "model.py:10",
    "Sqrt after backward 2": "Sqrt after backward 2",
}


@pytest.mark.parametrize(("typed", "left"), SPECS.items())
def test_what_is_left_of_a_spec(typed: str, left: str) -> None:
    """By the agent's own grammar: all but the condition stays."""
    assert without_condition(typed) == left
    before, after = parse_spec(typed), parse_spec(left)
    assert after.condition == "" and (before.kind, before.pattern, before.phase) == (
        after.kind,
        after.pattern,
        after.phase,
    )
    assert bool(before.condition) == (typed != left)


def test_a_condition_replaces_and_is_removed() -> None:
    rows = BreakpointList()
    number = rows.add("Sqrt after if index > 3").id
    assert rows.change(number, condition="index > 9").command_text == "break Sqrt after if index > 9"
    before = rows.get(number)
    assert rows.change(number, condition="").command_text == "break Sqrt after"
    rows.put_back(before)
    assert rows.get(number).command_text == "break Sqrt after if index > 9"
