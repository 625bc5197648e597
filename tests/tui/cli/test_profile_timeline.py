"""A recorded run as a time line, against the record's own rows and the lines of its log."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from support.program import adbg
from support.record_samples import nodes_ran

SCRIPT = {
    "torch": """
import torch
w = torch.ones(4, 4, requires_grad=True)
for _ in range(3):
    (w @ w).tanh().sum().backward()
""",
    "paddle": """
import paddle
w = paddle.ones([4, 4])
w.stop_gradient = False
for _ in range(3):
    (w @ w).tanh().sum().backward()
""",
}


@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in SCRIPT])
def test_nodes_records_and_iterations_on_one_time_line(tmp_path: Path, framework: str) -> None:
    script, run, trace = tmp_path / "three.py", tmp_path / "run", tmp_path / "run.trace.json"
    script.write_text(SCRIPT[framework])
    done = adbg("run", "--batch", "-e", "record on", "-e", "vlog 4", "-e", "c", "--run-dir", str(run), str(script))
    assert done.status == 0, str(done)
    written = adbg("profile", str(run), "-o", str(trace))
    assert written.status == 0, str(written)
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    by_kind: dict[str, list[dict]] = {}
    for event in events:
        by_kind.setdefault(str(event.get("cat")), []).append(event)
    took = [(name, us) for _, _, name, us in nodes_ran(run)]
    assert sorted(row["name"] for row in by_kind["node"]) == sorted(name for name, _ in took) and len(took) >= 9
    assert sum(row["dur"] for row in by_kind["node"]) == pytest.approx(sum(us for _, us in took), abs=1)
    assert [row["name"] for row in by_kind["iteration"]] == ["iteration 1", "iteration 2", "iteration 3"]
    heads = re.findall(r"(?m)^\t*[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} ", (run / "vlog-r0.log").read_text("utf-8"))
    assert len(by_kind["vlog"]) == len(heads) > 20
    calls = sorted((row["ts"], row["ts"] + row["dur"], row["tid"]) for row in by_kind["backward"])
    for node in by_kind["node"]:  # each lies in a backward call of its thread
        middle = node["ts"] + node["dur"] / 2
        assert any(begin <= middle <= end and tid == node["tid"] for begin, end, tid in calls), node
    assert all(one[1] <= two[0] + 1 for one, two in pairwise(calls)), "one ends before the next begins"
    finished = [row["ts"] for row in by_kind["vlog"] if "Finish Backward" in row["name"]]
    if framework == "paddle":  # by the framework's own record, written right before its end
        assert len(finished) == 3 and all(begin < at <= end for at, (begin, end, _) in zip(finished, calls))
    within = [row for row in by_kind["vlog"] if calls[0][0] <= row["ts"] <= calls[-1][1]]
    assert len(within) > len(by_kind["vlog"]) / 2, "the log's clock is the record's"
    shown = adbg("profile", str(run))
    assert shown.status == 0 and "iterations: median" in shown.stdout and " backward " in shown.stdout, str(shown)
