"""A training loop that waits for its data: its iterations, part by part, between two clocks of the script's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import on_frameworks
from support.program import adbg

from adbg.profiles.report.formats import detect
from adbg.profiles.report.verdict import Bound, judge

TORCH = """
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
make, ordered = lambda: torch.ones(16), {}
def optimizer_of(kind, model): return kind(model.parameters(), lr=0.01)
def clear(optimizer): optimizer.zero_grad()
"""
PADDLE = """
import paddle
from paddle import nn
from paddle.optimizer import SGD
from paddle.io import DataLoader, Dataset
make, ordered = lambda: paddle.ones([16]).numpy(), {"use_buffer_reader": False}
def optimizer_of(kind, model): return kind(0.01, parameters=model.parameters())
def clear(optimizer): optimizer.clear_grad()
"""
LOOP = """
import json, sys, time
now = time.perf_counter
inner, outer = [], {}

class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, place):
        time.sleep(0.02)
        return make()

class Model(nn.Sequential):
    def forward(self, x):
        begin = now()
        result = super().forward(x)
        inner.append(now() - begin)
        return result

def clocked(name, function, *args):
    begin = now()
    result = function(*args)
    outer.setdefault(name, []).append(now() - begin)
    return result

model = Model(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = optimizer_of(SGD, model)
batches = iter(DataLoader(Slow(), batch_size=2, **ordered))
for _ in range(12):
    x = clocked("data", next, batches)
    y = clocked("forward", model, x if not isinstance(x, list) else x[0])
    clear(optimizer)
    clocked("backward", y.sum().backward)
    clocked("optimizer", optimizer.step)
json.dump([inner, outer], open(sys.argv[1], "w"))
"""


@pytest.fixture
def script(framework: str, tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text({"torch": TORCH, "paddle": PADDLE}[framework] + LOOP)
    return path


@on_frameworks()
def test_each_part_lies_between_two_clocks_of_the_scripts(framework: str, script: Path, tmp_path: Path) -> None:
    run, told = tmp_path / "run", tmp_path / "clocks.json"
    done = adbg("profile", "--with", "nodes", "--iterations", "8", "--run-dir", str(run), str(script), str(told))
    assert done.status == 0, str(done)
    inner, outer = json.loads(told.read_text())
    (folder,) = (run / "profiles").iterdir()
    rows: list[dict[str, Any]] = json.loads((folder / "nodes.json").read_text())["iterations"]
    assert len(rows) == 8
    for name, late in (("data", 0), ("forward", 0), ("optimizer", 1)):  # the step is that of the backward before
        for number, row in enumerate(rows, 1):  # one iteration passed before
            at = number - late
            least = inner[at] if name == "forward" else 0.0
            assert least <= row[name + "_us"] / 1e6 <= outer[name][at], (name, number, row)
    assert all(0 < row["raw_backward_us"] / 1e6 <= outer["backward"][n] for n, row in enumerate(rows, 1))
    in_all = [sum(row[name + "_us"] for name in ("data", "forward", "optimizer")) for row in rows]
    assert all(parts <= row["outside_us"] for parts, row in zip(in_all, rows, strict=True))

    profile = detect.read(folder)
    verdict = judge(profile)
    assert verdict is not None and verdict.bound is Bound.DATA and verdict.basis == "iterations"
    wait = 1 + script.read_text().splitlines().index("    result = function(*args)")
    assert [(line.file, line.line, line.calls) for line in verdict.lines] == [(str(script), wait, 1)]
    waited = sum(outer["data"][1:9]) / 8
    assert verdict.lines[0].seconds == pytest.approx(waited, rel=0.1)
    assert f"data-bound: {100 * verdict.share:.0f}%" in done.stderr and f"train.py:{wait}" in done.stderr
