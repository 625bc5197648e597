"""Nodes of one kind that one line made are one row, which has the sums of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from adbg.profiles.report.formats import detect
from adbg.profiles.report.model import SECONDS, NodeTime, Profile
from adbg.profiles.report.node_groups import node_groups
from adbg.profiles.report.verdict import split
from adbg.tui.text.profile_report import node_lines

NODES = (
    NodeTime("Mm", "Mm#1", "backward", 10, 0.5, 0.1, file="a.py", line=3, module="net.0", median=0.02),
    NodeTime("Mm", "Mm#2", "backward", 10, 0.9, 0.2, file="a.py", line=3, module="net.1", median=0.09),
    NodeTime("Mm", "Mm#3", "backward", 10, 0.3, 0.3, file="a.py", line=4, module="net.1"),
    NodeTime("Mm", "Mm#1", "forward", 10, 0.1, 0.0, file="a.py", line=3),
    NodeTime("Tanh", "Tanh#1", "backward", 10, 0.2, 0.0, file="a.py", line=3),
)


@pytest.mark.parametrize("cost", [None, 0.05])
def test_a_row_has_the_sums_of_its_nodes(cost: float | None) -> None:
    rows = node_groups(Profile(nodes=NODES, launch_cost=cost))
    assert [(row.name, row.heaviest.phase, row.heaviest.line, row.count) for row in rows] == [
        ("Mm", "backward", 3, 2), ("Mm#3", "backward", 4, 1), ("Tanh#1", "backward", 3, 1), ("Mm#1", "forward", 3, 1),
    ]  # fmt: skip
    both = rows[0]
    assert (both.heaviest.unique_name, both.calls, both.total) == ("Mm#2", 20, pytest.approx(1.4))
    assert (both.usual, both.gap) == (pytest.approx(1.1), pytest.approx(0.3))
    parts = [split(node, cost) for node in NODES[:2]]
    if cost is None:
        assert parts == [None, None] and both.kernel is both.launch is None
    else:  # not the split of the sums: 1.1 - 20 * 0.05 is 0.1
        assert both.kernel == pytest.approx(0.4) == pytest.approx(sum(part[1] for part in parts if part))
        assert both.launch == pytest.approx(0.7)


def test_each_by_itself() -> None:
    rows = node_groups(Profile(nodes=NODES), single=True)
    assert [row.name for row in rows] == ["Mm#2", "Mm#3", "Mm#1", "Tanh#1", "Mm#1"]
    assert {row.module for row in rows} == {"net.0", "net.1", ""}


def test_the_text_says_how_many() -> None:
    first = node_lines(Profile(nodes=NODES), 120, 0)[1].split()
    assert first == ["1.1s", "55ms", "·", "·", "300ms", "20", "2", "backward", "Mm", "a.py:3"]
    assert "Mm#2" in node_lines(Profile(nodes=NODES), 120, 1, single=True)[1]


@pytest.mark.parametrize("ending", [e for e in detect.WRITERS if e != ".html" and e != ".svg"])
def test_every_format_has_the_nodes(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    detect.write(Profile(nodes=NODES), path)
    back = detect.read(path)
    assert back.total * (1 if back.unit == SECONDS else 1e-6) == pytest.approx(2.3, rel=1e-3)
    assert {"Mm#1", "Mm#2", "Mm#3", "Tanh#1"} <= {frame.name for frame in back.frames}


@pytest.mark.parametrize("ending", [".svg", ".html"])
def test_so_have_the_drawings(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x{ending}"
    detect.write(Profile(nodes=NODES, meta={"region": {"kind": "iterations", "count": 10, "place": ""}}), path)
    text = path.read_text()
    assert all(name in text for name in ("Mm#1", "Mm#2", "Mm#3", "Tanh#1"))
    assert "{&#x27;" not in text and (ending == ".svg" or "kind iterations, count 10<" in text)
