"""Activations that never come to the target. Witness: the least loss that any output of that range could have."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def program(loss: str, net: str = "nn.Linear(6, 3)", target: str = "") -> str:
    return f"""
net = {net}
optimizer = Sgd(net.parameters())
x = noise(64, 6)
labels = x[:, :3].argmax(1)
{target}
for step in range(6):
    out = net(x)
    {loss}
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""


MSE = (
    "loss = F.mse_loss(ACT, goal)  # CAUSE\n    ends = ENDS\n"
    "    print('least', step, float((goal - goal.clip(*ends)).square().mean()) > 0.1)"
)


def of(act: str, ends: str) -> str:
    return MSE.replace("ACT", act).replace("ENDS", ends)


BELOW = "goal = x[:, :3] * 2 - 1"
BUGGY = {
    "relu": program(of("F.relu(out)", "(0, 1e9)"), target=BELOW),
    "sigmoid": program(of("fw.sigmoid(out)", "(0, 1)"), target="goal = x[:, :3].abs() * 100"),
    "tanh": program(of("fw.tanh(out)", "(-1, 1)"), target="goal = x[:, :3] * 4"),
    "a layer": program(
        "loss = (out - goal).square().mean()\n    print('least', step, True)",
        "nn.Sequential(\n    nn.Linear(6, 3),\n    nn.ReLU(),  # CAUSE\n)",
        BELOW,
    ),
}
HEALTHY = {
    "no activation": program("loss = F.mse_loss(out, goal)", target=BELOW),
    "above": program("loss = F.mse_loss(F.relu(out), goal)", target="goal = x[:, :3].abs()"),
    "at the ends": program("loss = F.mse_loss(fw.sigmoid(out), goal)", target="goal = (x[:, :3] > 0) * 1.0"),
    "noise below": program("loss = F.mse_loss(F.relu(out), goal)", target="goal = x[:, :3].abs() - 0.1"),
    "scaled after": program("loss = F.mse_loss(fw.tanh(out) * 10, goal)", target="goal = x[:, :3] * 4"),
    "in the middle": program(
        "loss = F.mse_loss(out, goal)", "nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))", BELOW
    ),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | {
        f"healthy, {name}": part for name, part in HEALTHY.items()
    }
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"reach-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_a_target_that_cannot_be_met(runs: dict[str, Run], name: str) -> None:
    assert "least 5 True" in runs[f"buggy, {name}"].plain
    first = runs[f"buggy, {name}"].check_first("loss-input")
    assert first["severity"] == "warning" and "cannot be met" in first["message"], first


@each
@named(HEALTHY, {})
def test_a_target_within_reach(runs: dict[str, Run], name: str) -> None:
    assert not [found for found in runs[f"healthy, {name}"].every if "cannot be met" in found["message"]]
