"""A node that stands for a compiled region says so at the stop, and of which function where that is known."""

from __future__ import annotations

from dataclasses import replace

from adbg.engine.types import NodeInfo, NodeStop, Phase, SourceLine, StopReason
from adbg.tui.app.panels.status_bar import place_field
from adbg.tui.text.formatting import stop_lines

NODE = NodeInfo(1, "CompiledFunctionBackward", "CompiledFunctionBackward#1", compiled=True)


def stop(node: NodeInfo) -> NodeStop:
    return NodeStop(StopReason.BREAKPOINT, Phase.BEFORE, 1, 1, 2, 3, 0, 0, node=node)


def test_a_compiled_region_says_so() -> None:
    line = SourceLine("/nowhere/model.py", 12, "block")
    assert "  compiled region: all its operators in one node" in stop_lines(stop(NODE))
    words = "\n".join(stop_lines(stop(replace(NODE, forward=line))))
    assert "compiled region block (/nowhere/model.py:12): all its operators in one node" in words
    assert "compiled" not in "\n".join(stop_lines(stop(replace(NODE, name="Mm", unique_name="Mm#1", compiled=False))))
    assert place_field(stop(NODE)).endswith("(compiled region)")
