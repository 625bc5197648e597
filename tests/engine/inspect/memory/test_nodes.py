"""Memory node by node: a backward that takes a known number of bytes in one node and gives them back in another."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dialled import Dialled
from support.frameworks import case

TORCH = """
import torch
torch.set_num_threads(1)
kept = []
class Takes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        kept.append(torch.ones(24 << 20))  # 96 MiB
        return grad * 2
class Gives(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        kept.clear()
        return grad * 2
x = torch.ones(4, requires_grad=True)
for _ in range(3):
    Takes.apply(Gives.apply(x.sin())).sum().backward()
"""
PADDLE = """
import paddle
paddle.set_device("cpu")
kept = []
class Takes(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        kept.append(b"1" * (96 << 20))
        return grad * 2
class Gives(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        kept.clear()
        return grad * 2
x = paddle.ones([4])
x.stop_gradient = False
for _ in range(3):
    Takes.apply(Gives.apply(x.sin())).sum().backward()
"""
TAKEN = 96 << 20


@pytest.mark.parametrize(("script", "name"), [case("torch", TORCH, "TakesBackward"), case("paddle", PADDLE, "Takes")])
def test_the_node_that_takes_is_named(tmp_path: Path, script: str, name: str) -> None:
    with Dialled(tmp_path, script) as run:
        peer = run.peer
        peer.begin("backward ignore 2", entry=True)
        peer.stopped()
        peer.request("adbg/memory", rows=0, by_node=True)
        peer.go()
        found = peer.request("adbg/memory", rows=0, by_node=False)["nodes"]
        assert found["measure"] == "rss" and found["iteration"] == 2
        largest = found["takers"][0]
        assert name in largest["name"] and found["peak"]["name"] == largest["name"]
        assert TAKEN <= largest["after"] - largest["before"] < TAKEN + (8 << 20)
        assert largest["forward"]["line"] == run.line("Takes.apply(")
        assert TAKEN <= found["peak"]["highest"] - found["begun"] < TAKEN + (16 << 20)
        assert found["highest"]["name"] == largest["name"]
        peer.set()
        peer.request("continue")
        assert run.end()[0] == 0
