"""A region in which little runs: what there is of it is shown, and why there is no more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.frameworks import on_frameworks, only
from support.program import adbg, commands

from adbg.profiles import registry
from adbg.profiles.profilers.yep import few
from adbg.profiles.region import Region

LOOP = {
    "torch": """
import torch
torch.set_num_threads(1)
w = torch.ones(8, 8, requires_grad=True)
def step():
    w.grad = None
    (torch.ones(4, 8) @ w).tanh().sum().backward()
""",
    "paddle": """
import paddle
w = paddle.ones([8, 8])
w.stop_gradient = False
def step():
    w.clear_grad()
    (paddle.ones([4, 8]) @ w).tanh().sum().backward()
""",
}


@on_frameworks()
def test_the_node_between_two_stops(framework: str, tmp_path: Path) -> None:
    script, run = tmp_path / "loop.py", tmp_path / "run"
    script.write_text(LOOP[framework] + "for _ in range(2): step()\n")
    lines = ["break Tanh*", "continue", "profile nodes stop", "step", "continue"]
    done = adbg("run", "--batch", "--run-dir", run, *commands(*lines), script)
    (folder,) = (run / "profiles").iterdir()
    found = json.loads((folder / "nodes.json").read_text())
    (node,) = found["nodes"]
    assert node["name"].startswith("Tanh") and node["calls"] == 1 and node["us"] > 0 and node["line"] == 7, str(done)
    assert "nothing ran" not in done.stdout + done.stderr, str(done)
    shown = adbg("profile", str(run), "--no-open")
    assert "no verdict: these nodes are a part of one backward" in shown.stdout and "Tanh" in shown.stdout, str(shown)


@pytest.mark.parametrize(
    ("samples", "cpu", "region", "says"),
    [
        (0, 0.132, Region("node", 3000), "no samples: 132 ms of CPU time at 100 a second; repeat it more often"),
        (1, 0.02, Region("node", 100), "1 sample: 20 ms of CPU time at 100 a second; repeat it more often"),
        (3, 0.03, Region("backward"), "3 samples: 30 ms of CPU time at 100 a second; measure a longer region"),
    ],
)  # fmt: skip
def test_why_there_are_few_samples(samples: int, cpu: float, region: Region, says: str) -> None:
    said = few(samples, cpu, 100, region)
    assert said.startswith(says)
    if region.kind == "node":  # 20 samples, rounded up
        assert said.endswith({3000: "--repeat 5000", 100: "--repeat 1000"}[region.count])


@only("torch", "Paddle has no way to run a node by itself")
def test_a_node_repeated_for_less_than_a_sample(tmp_path: Path) -> None:
    if not registry.make("yep").available().ok:
        pytest.skip("needs libprofiler")
    script, run = tmp_path / "loop.py", tmp_path / "run"
    script.write_text(LOOP["torch"] + "step()\n")
    lines = ["break Tanh*", "continue", "profile yep node . --repeat 3", "continue"]
    done = adbg("run", "--batch", "--run-dir", run, *commands(*lines), script)
    said = " ".join((done.stdout + done.stderr).split())
    assert re.search(r"3 times: \S+ \w+, \S+ \w+ each; no samples: \S+ ms of CPU time at 100 a second", said), str(done)
    assert re.search(r"repeat it more often: --repeat [1-9]0+\b", said) and "nothing ran" not in said, str(done)
