"""The time of a node in which a thread stood at a stop is that of its work. Witness: the program's own clock around the
whole backward, beside a stop that is much longer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.dialled import Dialled
from support.frameworks import FRAMEWORKS, case
from support.program import ROOT

STOOD = 2.0  # seconds
HEAD = {
    "torch": "import torch\nleaf = torch.full((40, 30), 0.5, requires_grad=True)\n",
    "paddle": "import paddle\nleaf = paddle.full([40, 30], 0.5)\nleaf.stop_gradient = False\n",
}
PROGRAM = """
import time

def loss():
    value = leaf * 2.0
    for _ in range(6):
        value = value * 1.5
    return value.sin().exp().sum()

loss().backward()
begun = time.perf_counter()
loss().backward()
print("took", time.perf_counter() - begun)
"""
NAMES = {"torch": ("SinBackward0", "AccumulateGrad"), "paddle": ("SinGradNode", "GradNodeAccumulation")}


@pytest.mark.parametrize("framework", [case(name, name) for name in FRAMEWORKS])
def test_a_stop_is_no_work_of_the_node(framework: str, tmp_path: Path, extension: Path) -> None:
    first, last = NAMES[framework]
    env = {**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": str(ROOT)}
    with Dialled(tmp_path, HEAD[framework] + PROGRAM, env=env) as run:
        peer = run.peer
        peer.begin(first, last)
        stop = peer.stopped()
        time.sleep(STOOD)
        peer.go()
        rows = peer.request("adbg/graph", start=1, count=100)["rows"]
        (row,) = (row for row in rows if row["index"] == stop["index"])
        assert row["state"] == "done" and row["us"] is not None, row
        peer.request("disconnect")
        _, out, err = run.end()
    took = next(float(line.split()[1]) for line in out.splitlines() if line.startswith("took"))
    assert 0 < row["us"] / 1e6 < STOOD / 10 + took, (row, took, err)
