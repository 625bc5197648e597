"""paddle.profiler writes durations into names, begins in whole microseconds and two lanes for one thread."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from adbg.profiles.report.comparison import paired
from adbg.profiles.report.formats.chrome import read
from adbg.profiles.report.model import Profile
from adbg.profiles.report.tables import Grouping, difference, table

BEGAN = 1_795_363_038_550_992.4  # microseconds: Paddle cuts the fraction of ``ts``


def event(name: str, category: str, begin: float, took: float, lane: str = "C++") -> dict[str, Any]:
    text = f"{took / 1000:.3f} ms" if took > 1000 else f"{took:.3f} us"
    return {
        "name": f"{name}[{text}]", "pid": 7, "tid": f"7({lane})", "ts": int(BEGAN + begin), "dur": took, "ph": "X",
        "cat": category, "args": {"start_time": f"{begin:.3f} us", "end_time": f"{begin + took:.3f} us"},
    }  # fmt: skip


def step(first: int, scale: float) -> list[dict[str, Any]]:
    return [
        {"name": "thread_name", "pid": 7, "tid": "7(C++)", "ph": "M", "args": {"name": "thread 7:MainThread(C++)"}},
        event(f"ProfileStep#{first}", "ProfileStep", 0, 3000, "Python"),
        event("Linear", "Forward", 100, 500, "Python"),
        event("matmul dygraph", "Operator", 200, 100),
        event("matmul kernel launch", "DygraphKernelLaunch", 210.7, 89.3),  # ends with the operator, to the nanosecond
        event("backward", "UserDefined", 1000, 1500 * scale),
        event("Global_AddGradNode", "Operator", 1100, 40),
        event("Local_AddGradNode", "OperatorInner", 1101, 38),
        event("Global_AddGradNode", "Operator", 1200, 60),
        event("adamw_ dygraph", "Operator", 2600, 70),
        {},
    ]


def written(folder: Path, events: list[dict[str, Any]]) -> Profile:
    folder.mkdir()
    (folder / "trace.json").write_text(json.dumps({"schemaVersion": "1.0.2", "traceEvents": events}))
    return read(folder / "trace.json")


def rows(profile: Profile, grouping: Grouping = Grouping.FUNCTION) -> dict[str, tuple[int, int]]:
    return {
        row.frame.name: (round(row.own * 1e6), round(row.cumulative * 1e6)) for row in table(profile, grouping).rows
    }


def test_one_function_is_one_row_and_one_thread_one_lane(tmp_path: Path) -> None:
    profile = written(tmp_path / "one", step(0, 1.0))
    assert round(profile.total * 1e6) == 3000, "the step, and nothing of it twice"
    found = rows(profile)
    assert found["ProfileStep"] == (3000 - 500 - 1500 - 70, 3000)
    assert found["Linear"] == (400, 500)
    assert found["matmul dygraph"] == (11, 100) and found["matmul kernel launch"] == (89, 89)
    assert found["backward"] == (1400, 1500)
    assert found["AddGradNode"] == (62, 100), "both nodes"
    assert not [name for name in found if "[" in name]
    assert {sample.thread for sample in profile.samples} == {"thread 7:MainThread"}


def test_the_parts_of_a_step_are_its_phases(tmp_path: Path) -> None:
    found = rows(written(tmp_path / "one", step(0, 1.0)), Grouping.PHASE)
    assert {name: own for name, (own, _) in found.items()} == {
        "forward": 500, "backward": 1500, "optimizer": 70, "other": 3000 - 500 - 1500 - 70,
    }  # fmt: skip


def test_two_traces_have_their_rows_in_common(tmp_path: Path) -> None:
    pair = paired(written(tmp_path / "one", step(0, 1.0)), written(tmp_path / "two", step(4, 0.5)))
    changes = difference(pair.before, pair.after, shares=pair.shares).changes
    assert not [change.frame.name for change in changes if change.before is None or change.after is None]
    (backward,) = (change for change in changes if change.frame.name == "backward")
    assert round(backward.cumulative * 1e6) == -750


def test_an_event_of_another_tool_keeps_its_name(tmp_path: Path) -> None:
    other = {"name": "items[3 us]", "ph": "X", "ts": 0, "dur": 5, "pid": 1, "tid": "1(Python)"}
    assert rows(written(tmp_path / "one", [other])) == {"items[3 us]": (5, 5)}


PROGRAM = """
import sys, paddle
from paddle.profiler import Profiler, ProfilerTarget
net = paddle.nn.Linear(8, 8)
opt = paddle.optimizer.AdamW(parameters=net.parameters())
prof = Profiler(targets=[ProfilerTarget.CPU], on_trace_ready=lambda prof: prof.export(sys.argv[1], "json"))
prof.start()
for _ in range(4):
    h = net(paddle.ones([4, 8]))
    for _ in range(20):
        h = h * 0.5 + 1.0
    h.sum().backward()
    opt.step()
    opt.clear_grad()
    prof.step()
prof.stop()
"""


@pytest.mark.skipif(find_spec("paddle") is None, reason="needs Paddle")
def test_a_trace_of_paddles_own(tmp_path: Path) -> None:
    """Against plain sums over the events, whose names are cut at the bracket."""
    path = tmp_path / "trace.json"
    subprocess.run([sys.executable, "-c", PROGRAM, str(path)], check=True, timeout=180, capture_output=True)
    events = [each for each in json.loads(path.read_text())["traceEvents"] if each.get("ph") == "X"]
    took: Counter[str] = Counter()
    for each in events:
        took[re.sub(r"\[[^]]*\]$", "", each["name"])] += each["dur"]
    steps = sum(value for name, value in took.items() if name.startswith("ProfileStep#"))
    profile = read(path)
    found = {row.frame.name: row.cumulative * 1e6 for row in table(profile).rows}
    assert found["ProfileStep"] == pytest.approx(steps, rel=1e-3)
    assert found["backward"] == pytest.approx(took["backward"], rel=1e-3)
    assert found["ScaleGradNode"] == pytest.approx(took["Global_ScaleGradNode"], rel=1e-3)
    assert found["scale kernel launch"] == pytest.approx(took["scale kernel launch"], rel=1e-3)
    phases = {row.frame.name: row.own * 1e6 for row in table(profile, Grouping.PHASE).rows}
    assert phases["forward"] and phases["optimizer"] and phases["backward"] >= took["backward"] * 0.999
    assert sum(phases.values()) == pytest.approx(profile.total * 1e6)
