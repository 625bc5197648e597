"""What nodes of a graph are called and come from, told of one of a group: as many as torch's own graph has, and as
without the extension."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled
from support.program import ROOT

pytest.importorskip("torch")

PROGRAM = """
import torch
from torch import nn

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.line(x)) + Twice.apply(x)

torch.manual_seed(0)
model = nn.Sequential(*[Block() for _ in range(5)])
loose = torch.ones(6, requires_grad=True)
loss = (model(torch.ones(3, 6)) * loose).relu().sum()
"""
BACKWARD = "loss.backward()\n"
# The second witness: torch's own graph, walked without adbg.
OWN = """
seen, todo = set(), [loss.grad_fn]
while todo:
    node = todo.pop()
    if node is None or node in seen:
        continue
    seen.add(node)
    todo += [below for below, _ in node.next_functions]
print(*(node.name().removeprefix("torch::autograd::") for node in seen))
"""


def names_told(tmp_path: Path, native: str) -> dict[tuple[str, str], int]:
    tmp_path.mkdir()
    env = {**os.environ, "ADBG_NATIVE": native, "PYTHONPATH": str(ROOT)}
    with Dialled(tmp_path, PROGRAM + BACKWARD, env=env) as run:
        run.peer.begin("SumBackward0")
        run.peer.stopped()
        rows: list[list[Any]] = run.peer.request("adbg/info", what="names")["rows"]
        run.peer.request("disconnect")
        run.end()
    return {(kind, name.rpartition("/")[2]): count for name, count, kind in rows if count}


def test_names_are_those_of_torch_and_of_the_hooks(tmp_path: Path, extension: Path) -> None:
    names = subprocess.run([sys.executable, "-c", PROGRAM + OWN], capture_output=True, text=True, check=True).stdout
    told = names_told(tmp_path / "native", str(extension))
    assert {name: count for (kind, name), count in told.items() if kind == "name"} == collections.Counter(names.split())
    assert told["module", "3"] == 3 and told["module", "3.line"] == 4 and told["param", "3.line.bias"] == 1
    assert told == names_told(tmp_path / "hooks", "0")
