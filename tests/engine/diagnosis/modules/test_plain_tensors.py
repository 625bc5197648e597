"""Random numbers that a module keeps as a plain attribute, and that nothing trains."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

TORCH = """
import math, torch
from torch import nn
torch.manual_seed(5)
x, y = torch.randn(32, 6), torch.randn(32, 1)
class Centres(nn.Module):
    def __init__(self):
        super().__init__()
        MADE
    def forward(self, x):
        AFTER
        return (-(x.unsqueeze(1) - self.centres).square().sum(-1)).exp()
def main():
    net = nn.Sequential(Centres(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), 1e-1)
    before = net[0].centres.detach().clone()
    for step in range(9):
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("moved", not torch.equal(before, net[0].centres), "kept", "0.centres" in net.state_dict())
main()
"""
PADDLE = """
import math, paddle
import numpy as np
from paddle import nn
paddle.seed(5)
x, y = paddle.randn([32, 6]), paddle.randn([32, 1])
class Centres(nn.Layer):
    def __init__(self):
        super().__init__()
        MADE
    def forward(self, x):
        AFTER
        return (-(x.unsqueeze(1) - self.centres).square().sum(-1)).exp()
def main():
    net = nn.Sequential(Centres(), nn.Linear(4, 1))
    optimizer = paddle.optimizer.SGD(1e-1, parameters=net.parameters())
    before = net[0].centres.detach().clone()
    for step in range(9):
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    print("moved", not bool(paddle.equal_all(before, net[0].centres)), "kept", "0.centres" in net.state_dict())
main()
"""


def _program(base: str, made: str, after: str = "pass") -> str:
    return base.replace("MADE", made.replace("\n", "\n        ")).replace("AFTER", after)


TOLD = {
    "torch": {
        "drawn there": _program(TORCH, "self.centres = torch.randn(4, 6)  # CAUSE"),
        "drawn above": _program(TORCH, "grid = torch.empty(4, 6).uniform_(-1, 1)\nself.centres = grid * 2  # CAUSE"),
    },
    "paddle": {
        "drawn there": _program(PADDLE, "self.centres = paddle.randn([4, 6])  # CAUSE"),
        "drawn above": _program(
            PADDLE,
            "grid = np.random.RandomState(0).uniform(-1, 1, size=(4, 6)).astype('float32')\n"
            "self.centres = paddle.to_tensor(grid)  # CAUSE",
        ),
    },
}
NOT_TOLD = {
    "torch": {
        "a parameter": _program(TORCH, "self.centres = nn.Parameter(torch.randn(4, 6))"),
        "a buffer": _program(TORCH, 'self.register_buffer("centres", torch.randn(4, 6))'),
        "a grid": _program(TORCH, "self.centres = torch.linspace(-1, 1, 24).reshape(4, 6)"),
        "written to": _program(
            TORCH, "self.centres = torch.randn(4, 6)", "self.centres.mul_(0.9).add_(0.1 * x.detach()[:4])"
        ),
        "given anew": _program(
            TORCH, "self.centres = torch.randn(4, 6)", "self.centres = 0.9 * self.centres + 0.1 * x.detach()[:4]"
        ),
    },
    "paddle": {
        "a parameter": _program(
            PADDLE, "self.centres = self.create_parameter([4, 6], default_initializer=nn.initializer.Normal())"
        ),
        "a buffer": _program(PADDLE, 'self.register_buffer("centres", paddle.randn([4, 6]))'),
        "written to": _program(
            PADDLE, "self.centres = paddle.randn([4, 6])", "self.centres.scale_(0.9).add_(0.1 * x.detach()[:4])"
        ),
    },
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    texts = {f"told {key}": text for key, text in TOLD[name].items()}
    texts |= {f"not {key}": text for key, text in NOT_TOLD[name].items()}
    return {"": name, **diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)}  # type: ignore[dict-item]


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"plain-tensors-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_it_is_told_as_a_note(runs: dict[str, Run]) -> None:
    for key in TOLD[str(runs[""])]:
        run = runs[f"told {key}"]
        found = run.check_first("not-optimized")
        assert found["severity"] == "note" and "Centres.centres is a plain tensor" in found["message"], (key, found)
        assert "moved False kept False" in run.output, (key, run.output)


@each
def test_what_is_trained_kept_or_changed_is_not(runs: dict[str, Run]) -> None:
    for key in NOT_TOLD[str(runs[""])]:
        run = runs[f"not {key}"]
        assert not any("plain tensor" in found["message"] for found in run.every), (key, run)
        assert "moved True" in run.output or "kept True" in run.output or "grid" in key, (key, run.output)
