"""What is shown of a node's operator in the forward; where it was not measured, never 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adbg.profiles.report.formats import detect
from adbg.profiles.report.formats.html import write
from adbg.profiles.report.model import NodeTime, Profile
from adbg.profiles.report.node_groups import node_groups, with_stacks
from adbg.profiles.report.node_tables import node_table
from adbg.profiles.report.tables import Grouping
from adbg.profiles.report.verdict import judge
from adbg.tui.app.profile.sheets import nodes as node_sheet
from adbg.tui.cli import main as cli
from adbg.tui.text.profile_report import node_lines, verdict_lines

NODES = (
    NodeTime("Mm", "Mm#1", "backward", 10, 0.5, 0.1, file="a.py", line=3, module="net", median=0.05, forward=0.002),
    NodeTime("Mm", "Mm#2", "backward", 10, 0.4, 0.1, file="a.py", line=3, module="net", median=0.04),
    NodeTime("Tanh", "Tanh#1", "backward", 10, 0.2, 0.0, file="a.py", line=4, median=0.02, forward=0.003),
    NodeTime("Leaf", "Leaf#1", "backward", 10, 0.1, 0.0, median=0.01),
)
PROFILE = Profile(nodes=NODES, launch_cost=0.001, meta={"forwards": 5, "measured": 10, "backwards": 20})
BODY = {
    "adbg_nodes": 1, "framework": "torch", "iterations": [], "forward": {"timed": 5, "why": ""},
    "nodes": [
        {"name": "Mm", "unique_name": "Mm#1", "calls": 10, "us": 50.0, "total_us": 500.0, "forward_us": 2.0,
         "file": "a.py", "line": 3},
        {"name": "Leaf", "unique_name": "Leaf#1", "calls": 10, "us": 5.0, "total_us": 50.0, "forward_us": None},
    ],
}  # fmt: skip


def test_a_row_has_the_sum_of_those_that_are_known() -> None:
    rows = {row.heaviest.name: row for row in node_groups(PROFILE)}
    assert (rows["Mm"].forward, rows["Mm"].untimed) == (pytest.approx(0.02), 1)
    assert (rows["Tanh"].forward, rows["Tanh"].untimed) == (pytest.approx(0.03), 0)
    assert (rows["Leaf"].forward, rows["Leaf"].untimed) == (None, 1)


def test_in_the_text() -> None:
    head, *lines = node_lines(PROFILE, 160, 0)
    assert head.split()[7:10] == ["forward", "median", "node"]
    cells = {line.split()[9]: line.split()[7:9] for line in lines[:3]}
    assert cells == {"Mm": [">20ms", "·"], "Tanh#1": ["30ms", "3.0ms"], "Leaf#1": ["·", "·"]}
    assert "made the node in 5 forwards" in " ".join(lines[3:])
    without = Profile(nodes=NODES[1:2], meta={"forward": "not measured: no backward came"})
    text = " ".join(node_lines(without, 160, 0))
    assert "forward: not measured per node (no backward came)" in text and "0µs" not in text.replace("100ms", "")


def test_by_line_kind_and_phase() -> None:
    def of(grouping: Grouping) -> dict[str, float | None]:
        return {row.frame.name: row.forward for row in node_table(PROFILE, grouping).rows}

    assert of(Grouping.LINE) == {
        "a.py:3": pytest.approx(0.02), "a.py:4": pytest.approx(0.03), "(no line)": None, "gap before it": None,
    }  # fmt: skip
    by_kind = of(Grouping.FUNCTION)
    assert (by_kind["Mm"], by_kind["Tanh"], by_kind["Leaf"]) == (pytest.approx(0.02), pytest.approx(0.03), None)
    phases = {row.frame.name: row.own for row in node_table(PROFILE, Grouping.PHASE).rows}
    assert phases["forward"] == pytest.approx(0.05) and phases["backward"] == pytest.approx(1.2)
    assert sum(row.own for row in node_table(PROFILE, Grouping.LINE).rows) == pytest.approx(1.4), "of the backward"


def test_in_the_flame_graph() -> None:
    found = with_stacks(PROFILE)
    stacks = {tuple(found.frames[i].name for i in stack): weight for stack, weight, _ in found.samples}
    assert stacks["forward", "net", "Mm#1 forward"] == pytest.approx(0.02)
    assert stacks["forward", "Tanh#1 forward"] == pytest.approx(0.03)
    assert sum(name[0] == "forward" for name in stacks) == 2


def test_the_verdicts_lines_say_it() -> None:
    verdict = judge(PROFILE)
    assert verdict is not None and verdict.per == "backward"
    lines = {line.line: line.forward for line in verdict.lines}
    assert lines[3] == pytest.approx(0.002) and lines[4] == pytest.approx(0.003)
    assert any("a.py:3" in line and "2.0ms in their forward" in line for line in verdict_lines(PROFILE, 100))


def test_in_the_apps_table() -> None:
    sheet = node_sheet(PROFILE)
    titles = [column.title for column in sheet.columns]
    at = titles.index("forward")
    assert titles[at : at + 2] == ["forward", "each"]
    rows = {item.name: item for item in sheet.items}
    assert rows["Tanh#1"].numbers[at : at + 2] == (pytest.approx(0.03), pytest.approx(0.003))
    assert rows["Leaf#1"].numbers[at] is None and sheet.columns[at].text(None) == "·"
    assert "forward not measured" in rows["Leaf#1"].more and "1 not measured" in rows["Mm"].more
    assert "forward" not in [column.title for column in node_sheet(Profile(nodes=NODES[1:2])).columns]


def test_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(BODY))
    profile = detect.read(path)
    assert [node.forward for node in profile.nodes] == [pytest.approx(2e-6), None]
    write(with_stacks(profile), tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert "<th>forward</th>" in page and "not measured" in page and "Mm#1 forward" in page
    assert cli.main(["profile", str(path), "--json"]) == 0
    rows = {row["name"]: row["forward"] for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows == {"Mm": pytest.approx(2e-5), "Leaf": None, "backward": None}
    assert cli.main(["profile", str(path), "--flame", "--zoom", "^forward$"]) == 0
    assert "▏Mm#1 forward" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["Infinity", "NaN"])
def test_a_number_that_is_none(tmp_path: Path, value: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(BODY).replace("2.0", value))
    with pytest.raises(Exception, match="infinite, or none"):
        detect.read(path)
