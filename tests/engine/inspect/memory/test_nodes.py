"""Memory node by node: a backward that takes a known number of bytes in one node and gives them back in another, and
one node that takes and gives back more by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dialled import Dialled
from support.frameworks import case

TORCH = """
import torch
torch.set_num_threads(1)
kept = []
class Spikes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        spike = torch.ones(50 << 20)  # 200 MiB
        return grad * spike[0]
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
    Spikes.apply(Takes.apply(Gives.apply(x.sin()))).sum().backward()
"""
PADDLE = """
import paddle
paddle.set_device("cpu")
kept = []
class Spikes(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        spike = paddle.ones([50 << 20])  # 200 MiB
        return grad * spike[0]
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
    Spikes.apply(Takes.apply(Gives.apply(x.sin()))).sum().backward()
"""
TAKEN, SPIKE = 96 << 20, 200 << 20
SLACK = 2 << 20  # the kernel counts pages by processor, and sums them up now and then


@pytest.mark.parametrize(("script", "ends"), [case("torch", TORCH, "Backward"), case("paddle", PADDLE, "")])
def test_the_node_that_takes_is_named(tmp_path: Path, script: str, ends: str) -> None:
    with Dialled(tmp_path, script) as run:
        peer = run.peer
        peer.begin("backward ignore 2", entry=True)
        peer.stopped()
        peer.request("adbg/memory", rows=0, by_node=True)
        peer.go()
        found = peer.request("adbg/memory", rows=0, by_node=False)["nodes"]
        assert found["measure"] == "rss" and found["iteration"] == 2
        spikes, takes = found["takers"][:2]
        assert f"Spikes{ends}" in spikes["name"] and f"Takes{ends}" in takes["name"]
        assert TAKEN - SLACK <= takes["after"] - takes["before"] < TAKEN + (8 << 20)
        assert takes["highest"] - takes["after"] < 8 << 20
        assert takes["forward"]["line"] == run.line("Takes.apply(")
        # what a node gives back itself is told by the kernel's own mark
        assert found["within"] and spikes["after"] - spikes["before"] < 8 << 20
        assert SPIKE - SLACK <= spikes["highest"] - spikes["before"] < SPIKE + (8 << 20)
        assert found["peak"]["name"] == spikes["name"] == found["highest"]["name"]
        assert SPIKE - SLACK <= found["peak"]["highest"] - found["begun"] < SPIKE + (16 << 20)
        mine = peer.request("adbg/memory", rows=0)["process"]
        assert mine["peak_rss"] >= found["peak"]["highest"], "the mark was set back, what it was is not lost"
        peer.set()
        peer.request("continue")
        assert run.end()[0] == 0
