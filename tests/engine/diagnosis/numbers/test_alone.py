"""Normalisations over a single element: what comes out is the bias, whatever comes in."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

TORCH = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(5)
x, y = torch.randn(16, 3, 8, 8), torch.randint(0, 3, (16,))
class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm, self.up = nn.Conv2d(8, 4, 1), NORM, nn.Conv2d(4, 8, 1)
    def forward(self, x):
        small = self.down(F.adaptive_avg_pool2d(x, POOLED))
        small = MIDDLE
        return x * torch.sigmoid(F.adaptive_avg_pool2d(self.up(F.relu(small)), 1))
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Gate(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
with torch.no_grad():
    net[2].norm.bias.add_(0.3) if hasattr(net[2].norm, "bias") else None
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(6):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("down", float(net[2].down.weight.grad.abs().max()), "net", float(net[0].weight.grad.abs().max()))
"""
PADDLE = """
import paddle
import paddle.nn.functional as F
from paddle import nn
paddle.seed(5)
x, y = paddle.randn([16, 3, 8, 8]), paddle.randint(0, 3, [16])
class Gate(nn.Layer):
    def __init__(self):
        super().__init__()
        self.down, self.norm, self.up = nn.Conv2D(8, 4, 1), NORM, nn.Conv2D(4, 8, 1)
    def forward(self, x):
        small = self.down(F.adaptive_avg_pool2d(x, POOLED))
        small = MIDDLE
        return x * F.sigmoid(F.adaptive_avg_pool2d(self.up(F.relu(small)), 1))
net = nn.Sequential(nn.Conv2D(3, 8, 3), nn.ReLU(), Gate(), nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(8, 3))
with paddle.no_grad():
    net[2].norm.bias.set_value(net[2].norm.bias + 0.3) if hasattr(net[2].norm, "bias") else None
optimizer = paddle.optimizer.SGD(1e-2, parameters=net.parameters())
for step in range(6):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    print("down", float(net[2].down.weight.grad.abs().max()), "net", float(net[0].weight.grad.abs().max()))
    optimizer.step()
    optimizer.clear_grad()
"""


def _program(base: str, norm: str, middle: str = "self.norm(small)  # CAUSE", pooled: int = 1) -> str:
    return base.replace("NORM", norm).replace("MIDDLE", middle).replace("POOLED", str(pooled))


BROKEN = {
    "torch": {
        "group norm with as many groups as channels": _program(TORCH, "nn.GroupNorm(4, 4)"),
        "layer norm over the last axis of 1x1": _program(TORCH, "nn.LayerNorm(1)"),
        "by hand": _program(
            TORCH, "nn.Identity()", "small - small.mean(dim=2, keepdim=True) + 0.1  # CAUSE",
        ),
    },
    "paddle": {
        "group norm with as many groups as channels": _program(PADDLE, "nn.GroupNorm(4, 4)"),
        "layer norm over a map of 1x1": _program(PADDLE, "nn.LayerNorm([1, 1])"),
        "by hand": _program(
            PADDLE, "nn.Identity()", "small - small.mean(axis=2, keepdim=True) + 0.1  # CAUSE",
        ),
    },
}  # fmt: skip
HEALTHY = {
    "torch": {
        "two channels in a group": _program(TORCH, "nn.GroupNorm(2, 4)"),
        "a map of 2x2": _program(TORCH, "nn.GroupNorm(4, 4)", pooled=2),
        "one level of a pyramid is 1x1": _program(
            TORCH, "nn.GroupNorm(4, 4)", "sum(self.norm(F.adaptive_avg_pool2d(small, size)).mean() for size in (2, 1)) "
            "+ small", pooled=4,
        ),
        "the mean over the channels": _program(TORCH, "nn.Identity()", "small - small.mean(dim=1, keepdim=True)"),
    },
    "paddle": {
        "two channels in a group": _program(PADDLE, "nn.GroupNorm(2, 4)"),
        "a map of 2x2": _program(PADDLE, "nn.GroupNorm(4, 4)", pooled=2),
        "the mean over the channels": _program(PADDLE, "nn.Identity()", "small - small.mean(axis=1, keepdim=True)"),
    },
}  # fmt: skip
# What the framework calls the nodes that those lines make.
MADE = {
    "torch": {"group": "NativeGroupNormBackward0", "layer": "NativeLayerNormBackward0", "by": "SubBackward0"},
    "paddle": {"group": "GroupNormGradNode", "layer": "LayerNormGradNode", "by": "SubtractGradNode"},
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    texts = {f"broken {key}": text for key, text in BROKEN[name].items()}
    texts |= {f"healthy {key}": text for key, text in HEALTHY[name].items()}
    return {"": name, **diagnose_each(name, tmp_path_factory.mktemp("alone"), texts)}  # type: ignore[dict-item]


each = pytest.mark.parametrize("runs", [case(name, name, group=f"alone-{name}") for name in FRAMEWORKS], indirect=True)


def _gradients(run: Run) -> tuple[float, float]:
    """The framework's own, after the last backward: of what the normalisation is behind, and of the whole."""
    words = [line for line in run.output.splitlines() if line.startswith("down")][-1].split()
    return float(words[1]), float(words[3])


@each
def test_the_line_is_told(runs: dict[str, Run]) -> None:
    for key in BROKEN[str(runs[""])]:
        run = runs[f"broken {key}"]
        found = run.check_first("zero-gradient")
        assert "normalises single elements" in found["message"], (key, found)
        assert found["node"]["name"] == MADE[str(runs[""])][key.split()[0]], (key, found)
        below, whole = _gradients(run)
        assert below < 1e-6 < 1e-5 < whole, (key, run.output)


@each
def test_more_than_one_element_is_trained(runs: dict[str, Run]) -> None:
    for key in HEALTHY[str(runs[""])]:
        run = runs[f"healthy {key}"]
        assert not run.above_notes(), (key, run)
        assert _gradients(run)[0] > 1e-6, (key, run.output)
