"""``info params`` has the tensors that people look for: leaves of no module, and what optimizers hold or lack."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled

TORCH = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.hidden = [torch.nn.Linear(2, 3)]
    def forward(self, x):
        return self.hidden[0](self.body(x))
net = Net()
x = torch.ones(1, 2)
scale = torch.ones(3, requires_grad=True)
frozen = torch.ones(5)
optimizer = torch.optim.SGD([net.body.weight, scale, net.hidden[0].weight], lr=0.1)
optimizer.param_groups[0]["params"].append(frozen)
(net(x) * scale).sum().backward()
print(scale.grad is not None, net.hidden[0].weight.grad is not None, net.hidden[0].bias.grad is not None, frozen.grad)
(net(x) * scale).sum().backward()
"""
PADDLE = """
import paddle
class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = paddle.nn.Linear(2, 2)
    def forward(self, x):
        return self.body(x)
net = Net()
x = paddle.ones([1, 2])
scale = paddle.ones([2])
scale.stop_gradient = False
frozen = paddle.ones([5])
optimizer = paddle.optimizer.SGD(parameters=[net.body.weight, scale, frozen], learning_rate=0.1)
(net(x) * scale).sum().backward()
print(scale.grad is not None, frozen.grad)
(net(x) * scale).sum().backward()
"""


def rows_of(tmp_path: Path, script: str) -> tuple[str, dict[str, dict[str, Any]], str]:
    with Dialled(tmp_path, script) as run:
        run.peer.begin("backward")
        run.peer.stopped()
        run.peer.go()  # now there are gradients
        body = run.peer.request("adbg/info", what="params")
        rows = {row[0]: dict(zip(body["columns"], row, strict=True)) for row in body["rows"]}
        run.peer.request("continue")
        return body["text"], rows, run.end()[1]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")
def test_leaves_of_no_module_and_tensors_of_an_optimizer_torch(tmp_path: Path) -> None:
    text, rows, printed = rows_of(tmp_path, TORCH)
    assert printed == "True True True None\n"
    assert text == "2 parameters; 0 without a gradient now; 4 tensors in no module seen so far"
    assert [rows[name]["note"] for name in ("body.weight", "body.bias")] == ["", "in no optimizer"]
    scale, hidden, frozen = (rows[f"SGD params[{place}]"] for place in (1, 2, 3))
    assert (scale["shape"], hidden["shape"], frozen["shape"]) == ("[3]", "[3, 2]", "[5]")
    assert scale["grad"] and hidden["grad"] and not frozen["grad"] and not frozen["requires_grad"]
    assert "in no module; gets a gradient here: leaf of AccumulateGrad#" in scale["note"]
    (lost,) = (row for name, row in rows.items() if name.startswith("leaf of"))
    assert lost["shape"] == "[3]" and lost["grad"] and "in no module, in no optimizer" in lost["note"]


@pytest.mark.skipif(importlib.util.find_spec("paddle") is None, reason="paddle is not installed here")
def test_tensors_of_an_optimizer_that_no_module_has_paddle(tmp_path: Path) -> None:
    text, rows, printed = rows_of(tmp_path, PADDLE)
    assert printed == "True None\n" and "2 tensors in no module seen so far" in text
    assert [rows[name]["note"] for name in ("body.weight", "body.bias")] == ["", "in no optimizer"]
    scale, frozen = (rows[f"SGD parameters[{place}]"] for place in (1, 2))
    assert scale["grad"] and not frozen["grad"] and not frozen["requires_grad"]
