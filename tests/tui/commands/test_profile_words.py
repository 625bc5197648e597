"""What the prompt says of a profile: what to type next there, and what `adbg profile` says at the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adbg.engine.protocol import messages as protocol
from adbg.profiles.report.model import Profile
from adbg.tui.cli.profile import _judged
from adbg.tui.commands.profile import _open, ended_text
from adbg.tui.text.profile import state_text
from adbg.tui.text.profile_report import head_lines

NODE = {"calls": 10, "us": 100.0, "total_us": 1000.0, "gap_us": 5.0, "file": "/a/m.py", "line": 4}


@pytest.fixture
def state(tmp_path: Path) -> protocol.ProfileState:
    folder = tmp_path / "profiles" / "001-nodes"
    folder.mkdir(parents=True)
    body = {
        "adbg_nodes": 1,
        "framework": "torch",
        "cost": {"launch_us": 500.0},
        "nodes": [{"name": name, **NODE} for name in ("MmBackward0", "TBackward0")],
        "iterations": [{"backward_us": 200.0, "outside_us": 100.0}] * 12,
    }
    (folder / "nodes.json").write_text(json.dumps(body))
    (folder / "meta.json").write_text(json.dumps({"profiler": "nodes", "file": "nodes.json"}))
    region = protocol.ProfileRegion("iterations", 12)
    return protocol.ProfileState("done", "nodes", region, folder=str(folder), file="nodes.json", iterations=12)


def test_the_end_of_a_profile_at_the_prompt(
    state: protocol.ProfileState, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ended_text(state).splitlines()
    assert f"to see it: profile open {state.folder}" in lines[1] and "adbg profile" not in "".join(lines)
    _judged(str(tmp_path))
    said = " ".join(" ".join(line.removeprefix("adbg: ").split()) for line in capsys.readouterr().err.splitlines())
    assert "iterations: median 300µs" in said
    assert " ".join(" ".join(lines[2:]).split()) == said, "the verdict and the iterations as the command line has them"
    shown = _open([str(state.folder)]).text
    assert "iterations: median 300µs" in shown and "MmBackward0" in shown
    assert f"adbg profile {state.folder}" in state_text(state), "a shell is told a command of a shell's"


def test_a_profile_that_waits_says_what_goes_on(state: protocol.ProfileState) -> None:
    state = replace(state, state="waiting")
    assert "`continue` goes on to it" in state_text(state, True, True)
    assert "continue" not in state_text(state, True, False)


def test_a_profile_of_a_job_says_whose_it_is() -> None:
    region = protocol.ProfileRegion("iterations", 10)
    done = protocol.ProfileState("done", "cprofile", region, "/run/002-cprofile", "profile.pstats", rank=1)
    assert state_text(done).startswith("profile cprofile of rank 1, 10 iterations")
    assert state_text(replace(done, rank=None)).startswith("profile cprofile, 10 iterations")
    (head,) = head_lines(Profile(meta={"profiler": "cprofile", "rank": 0}), "x")
    assert head == "x: cprofile, rank 0"
    (head,) = head_lines(Profile(meta={"profiler": "cprofile", "rank": None}), "x")
    assert head == "x: cprofile"
