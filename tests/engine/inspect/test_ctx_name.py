"""``ctx`` and ``saved`` in expressions at the node of a custom Function."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dialled import Dialled
from support.frameworks import only
from support.front_end import Refused

TORCH = """
import torch
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, temperature):
        ctx.temperature = temperature
        ctx.save_for_backward(x, x.round())
        return x.round()
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.temperature, None
Gate.apply(torch.ones(3, requires_grad=True).exp(), 0.5).sum().backward()
"""

PADDLE = """
import paddle
class Gate(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.temperature = 0.5
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.temperature
w = paddle.ones([3])
w.stop_gradient = False
Gate.apply(w.exp()).sum().backward()
"""


@only("torch", "Paddle shows the ctx of a PyLayer inside its backward alone")
def test_ctx_is_the_context_of_the_function_at_hand(tmp_path: Path) -> None:
    with Dialled(tmp_path, TORCH) as run:
        run.peer.begin("Gate*", "Exp*")
        assert run.peer.stopped()["node"]["name"] == "GateBackward"
        assert run.peer.value("ctx.temperature * 2") == 1.0
        assert run.peer.value("len(ctx.saved_tensors)") == 2
        assert run.peer.request("evaluate", expression="saved")["result"] == "saved: saved[0] [3] f32, saved[1] [3] f32"
        assert "ctx.NAME" in run.peer.request("adbg/node")["attributes"]["ctx"]
        assert run.peer.go()["node"]["name"] == "ExpBackward0"
        with pytest.raises(Refused, match="name 'ctx' is not defined"):
            run.peer.value("ctx")
        assert run.peer.request("evaluate", expression="saved")["result"] == "saved: result [3] f32"
        run.peer.request("continue")
        assert run.end()[0] == 0


@only("paddle", "torch shows it: its node is the ctx")
def test_paddle_says_where_ctx_is(tmp_path: Path) -> None:
    with Dialled(tmp_path, PADDLE) as run:
        run.peer.begin("*Gate")
        run.peer.stopped()
        with pytest.raises(Refused, match="does not show the ctx of a PyLayer") as refusal:
            run.peer.value("ctx.temperature")
        assert "breakpoint()" in str(refusal.value.error)
        assert "breakpoint()" in run.peer.request("adbg/node")["attributes"]["ctx"]
        run.peer.request("continue")
        assert run.end()[0] == 0
