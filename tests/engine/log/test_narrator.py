"""VLOG for a framework that has none: what is written at each level, where, and how deep."""

from __future__ import annotations

import re
from typing import Any

import pytest

from adbg.engine.backends.base import BackwardCall, HookPlan
from adbg.engine.errors import CommandError
from adbg.engine.glog import ROW_BACKWARD, ROW_NODE, ROW_PLAIN, ROWS, Record, parse
from adbg.engine.log.narrator import Narrator
from tests.fake_backend import FakeBackend, FakeGraph


class Narrated:
    """A HookSink that only narrates, all nodes hooked."""

    def __init__(self, levels: str) -> None:
        self.lines: list[str] = []
        self.narrator = Narrator(self.lines.append)
        self.narrator.set_levels(levels)
        self.backend = FakeBackend()
        self.backend.install(self)
        self.backend.arm(True)

    def backward_begin(self, call: BackwardCall) -> None:
        call.hook(HookPlan(every=True))
        if self.narrator.enabled:
            self.narrator.backward_begin(call)

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: tuple[Any, ...]) -> None:
        if self.narrator.enabled:
            index = list(call.order()).index(key) + 1
            self.narrator.node_begin(call, key, index, grad_outputs, self.backend)

    def node_end(
        self, call: BackwardCall, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]
    ) -> None:
        if self.narrator.enabled:
            index = list(call.order()).index(key) + 1
            self.narrator.node_end(call, key, index, grad_inputs, self.backend, 41.2)

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        if self.narrator.enabled:
            self.narrator.backward_end(call, error)

    def run(self, graph: FakeGraph) -> list[Record]:
        """Records of one backward: every line written must be one record of the grammar."""
        self.lines.clear()
        self.backend.backward(graph)
        records = parse("".join(self.lines))
        assert len(records) == len(self.lines) and all(record.severity for record in records)
        return records


def nested_graph(narrated: Narrated) -> FakeGraph:
    """Mul -> Outer (custom; runs a chain of its own) -> leaf."""
    graph = FakeGraph()
    inner = narrated.backend.nested(FakeGraph.chain(2))
    return_outer = graph.add("OuterBackward", graph.leaf("w"), fn=inner, custom=True)
    graph.add("MulBackward0", return_outer)
    return graph


def texts(records: list[Record]) -> list[str]:
    return [record.text for record in records]


def test_nothing_is_written_unless_asked() -> None:
    narrated = Narrated("")
    assert not narrated.narrator.enabled and not narrated.narrator.wants_nodes
    assert narrated.run(FakeGraph.chain(3)) == []


def test_level_3_says_what_paddle_says() -> None:
    narrated = Narrated("3")
    records = narrated.run(FakeGraph.chain(2))
    assert texts(records) == [
        "Run in Backward: backward #1 at /fake/train.py:88",
        "=================RunBackward: Start Backward =================",
        "RunBackward: Start_up_ops's size is 1",
        "AddBackward0(#1) Preparing ",
        "MulBackward0(#2) Preparing ",
        "AccumulateGrad(#3) Preparing ",
        "=================RunBackward: Finish Backward =================",
    ]
    assert {record.level for record in records} == {3}
    rows = [found.lastindex for found in ROWS.finditer(("\n" + "".join(narrated.lines)).encode())]
    assert [row for row in rows if row != ROW_PLAIN] == [ROW_BACKWARD, ROW_NODE, ROW_NODE, ROW_NODE, ROW_BACKWARD]


def test_each_level_adds() -> None:
    by_level = {level: texts(Narrated(str(level)).run(FakeGraph.chain(2))) for level in (3, 4, 5, 6)}
    for level in (4, 5, 6):
        assert len(by_level[level]) > len(by_level[level - 1])
    assert "MulBackward0(#2) grad_outputs: [4] f32" in by_level[4]
    assert "MulBackward0(#2) grad_inputs: [4] f32 in 41 us" in by_level[4]
    assert "AddBackward0(#1) Found pending node: MulBackward0#1" in by_level[4]
    assert "AddBackward0(#1) module layers.2" in by_level[5]
    assert "AccumulateGrad(#3) parameter w" in by_level[5]
    assert any(text.startswith("MulBackward0(#2) grad_outputs: [4] f32 cpu 16 B") for text in by_level[5])
    assert "AddBackward0(#1) is AddBackward0#1; forward /fake/model.py:2 in forward" in by_level[6]
    assert not any(" is AddBackward0#1" in text for text in by_level[5])


def test_nesting_is_one_tab_for_each_level() -> None:
    narrated = Narrated("3")
    records = narrated.run(nested_graph(narrated))
    shape = [(record.indent, record.text.strip("= ")) for record in records if re.search("Prep|Layer|=", record.text)]
    assert shape == [
        (0, "RunBackward: Start Backward"),
        (0, "MulBackward0(#1) Preparing"),
        (0, "OuterBackward(#2) Preparing"),
        (1, "Running PyLayer OuterBackward"),
        (1, "RunBackward: Start Backward"),
        (1, "AddBackward0(#1) Preparing"),
        (1, "MulBackward0(#2) Preparing"),
        (1, "AccumulateGrad(#3) Preparing"),
        (1, "RunBackward: Finish Backward"),
        (1, "Finish PyLayer OuterBackward"),
        (0, "AccumulateGrad(#3) Preparing"),
        (0, "RunBackward: Finish Backward"),
    ]


def test_levels_change_live_and_by_module() -> None:
    narrated = Narrated("off")
    narrator = narrated.narrator
    assert narrator.set_levels("nodes=4") == {"*": 0, "nodes": 4}
    assert narrator.enabled and narrator.wants_nodes
    assert {record.file for record in narrated.run(FakeGraph.chain(2))} == {"nodes"}
    assert narrator.set_levels("3") == {"*": 3, "nodes": 4}, "a module's own level stays"
    assert {record.file for record in narrated.run(FakeGraph.chain(2))} == {"calls", "backward", "nodes"}
    narrator.set_levels("off")
    narrator.set_levels("calls=5")
    assert narrator.enabled and not narrator.wants_nodes
    assert [r.level for r in narrated.run(FakeGraph.chain(2))] == [3, 4, 5]
    assert narrator.set_levels("") == {"*": 0, "calls": 5}
    assert narrator.set_levels("off") == {"*": 0} and not narrator.enabled
    narrator.set_levels("[bn]*=3")
    assert {r.file for r in narrated.run(FakeGraph.chain(2))} == {"backward"}


def test_unknown_modules_are_refused_and_change_nothing() -> None:
    narrator = Narrated("3").narrator
    with pytest.raises(CommandError, match="no VLOG module 'kernels'") as caught:
        narrator.set_levels("nodes=6,kernels=4")
    assert "pylayer" in caught.value.hint
    assert narrator.set_levels("") == {"*": 3}


def test_an_error_is_a_warning_record_and_the_depth_comes_back() -> None:
    narrated = Narrated("3")
    graph = FakeGraph()

    def fails(backend: FakeBackend, grads: tuple[Any, ...]) -> Any:
        raise ValueError("wrong shape\nmore")

    graph.add("OuterBackward", graph.leaf("w"), fn=fails, custom=True)
    with pytest.raises(ValueError, match="wrong shape"):
        narrated.run(graph)
    records = parse("".join(narrated.lines))
    (warning,) = [record for record in records if record.severity == "W"]
    assert warning.text == "ValueError left backward #1: wrong shape"


def test_a_gradient_that_cannot_be_described_costs_its_text_only() -> None:
    narrated = Narrated("4")
    graph = FakeGraph.chain(1)
    narrated.backend.meta = lambda value: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    assert "MulBackward0(#1) grad_outputs: ?" in texts(narrated.run(graph))
