"""torch.profiler tells of a node twice, by the engine and by itself: one frame, whose time is counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adbg.profiles.report.flame import Tree
from adbg.profiles.report.formats.chrome import read
from adbg.profiles.report.tables import table


def event(name: str, begin: float, took: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": begin, "dur": took, "pid": 1, "tid": 1}


def test_the_engines_event_and_the_nodes_own_are_one(tmp_path: Path) -> None:
    events = [
        event("autograd::engine::evaluate_function: MmBackward0", 0, 100),
        event("MmBackward0", 10, 80),
        event("aten::mm", 20, 50),
        event("aten::mm", 75, 5),
        event("autograd::engine::evaluate_function: TBackward0", 100, 20),
        event("TBackward0", 105, 10),
        event("MmBackward0", 130, 7),  # not within the engine's
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    profile = read(tmp_path / "trace.json")
    rows = {(row.frame.name, row.frame.side): round(row.cumulative * 1e6) for row in table(profile).rows}
    assert rows == {
        ("MmBackward0", "node"): 100, ("TBackward0", "node"): 20,
        ("aten::mm", "native"): 55, ("MmBackward0", "native"): 7,
    }  # fmt: skip
    tree = Tree(profile)
    assert max(len(tree.path(node)) for node in range(len(tree))) == 3, "all, the node, its operator"
    assert len(profile.spans) == 7, "on the time line both are kept"


@pytest.mark.parametrize("origin", [0, 1_700_000_000_000_000])
def test_events_that_follow_each_other_are_not_nested(tmp_path: Path, origin: int) -> None:
    """Begin and duration in seconds, 0.096888 + 0.115216 > 0.212104: the next would end with the one before it."""
    began = [(96_888, 115_216), (212_104, 1_186_509), (1_398_613, 429_167), (1_827_780, 3), (1_827_783, 17)]
    events = [event(f"f{number}", origin + begin, took) for number, (begin, took) in enumerate(began)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    rows = table(read(tmp_path / "trace.json")).rows
    told = {row.frame.name: row.cumulative * 1e6 for row in rows}
    assert told == {f"f{number}": pytest.approx(took, abs=1.5) for number, (_, took) in enumerate(began)}
