"""What runs behind a stop is told while the backward runs, not only at its end. The program's backward waits in the
middle until the test has heard of it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from support.dialled import Dialled
from support.frameworks import FRAMEWORKS, case
from support.program import ROOT

HEAD = {
    "torch": """
import torch
leaf = torch.full((40, 30), 0.5, requires_grad=True)
from torch.autograd import Function
""",
    "paddle": """
import paddle
leaf = paddle.full([40, 30], 0.5)
leaf.stop_gradient = False
from paddle.autograd import PyLayer as Function
""",
}
PROGRAM = """
import os, time

class Waits(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        while not os.path.exists(HEARD):
            time.sleep(0.01)
        return grad

value = Waits.apply(leaf * 2.0)
for _ in range(6):
    value = value * 1.5
value.sin().sum().backward()
"""
SINE = {"torch": "SinBackward0", "paddle": "SinGradNode"}
FACTORS = 2.0 * 1.5**6


@pytest.mark.parametrize("framework", [case(name, name) for name in FRAMEWORKS])
def test_nodes_are_told_while_they_run(framework: str, tmp_path: Path, extension: Path) -> None:
    heard = tmp_path / "heard"
    text = f"HEARD = {str(heard)!r}\n" + HEAD[framework] + PROGRAM
    with Dialled(tmp_path, text, env={**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": str(ROOT)}) as run:
        peer = run.peer
        peer.begin(SINE[framework])
        stop = peer.stopped()
        rows = peer.request("adbg/graph", start=1, count=100)["rows"]
        peer.request("continue")

        def told() -> list[dict[str, float]]:
            return [node for body in peer.bodies("adbg/nodes") for node in body["nodes"]]

        # The sine, which waited at the stop, and the six products: all in front of the function that waits.
        peer.until(lambda: len({node["index"] for node in told() if node["index"] > stop["index"]}) >= 6, "six nodes")
        assert not peer.bodies("adbg/backwardEnd")
        by_index = {node["index"]: node for node in told()}
        first = stop["index"] + 1
        assert sorted(by_index)[-6:] == list(range(first, first + 6)), by_index
        # The second witness: what the chain rule gives, times the cosine of what the sine was given.
        norm = math.sqrt(40 * 30) * abs(math.cos(0.5 * FACTORS))
        for place in range(6):
            assert by_index[first + place]["norm"] == pytest.approx(norm * 1.5**place, rel=1e-4)
        heard.touch()
        peer.event("adbg/backwardEnd")
        assert len({node["index"] for node in told()} | set(range(1, first))) == len(rows)
        run.end()
