"""Targets of temporal differences. Witness: whether the framework says that the target wants gradients."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def step(loss: str) -> str:
    return f"""
optimizer = Sgd(net.parameters(), 0.01)
x = noise(32, 6)
for step in range(9):
{loss}
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""


NET = """
net = nn.Linear(6, 1)
reward, alive = noise(32, 1), fw.ones([32, 1])
"""


def td(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return NET + step(body + "    print('wants', fixed(goal))").replace(
        "net.parameters(), 0.01)", "net.parameters(), 0.001)"
    )


FIXED = """
def fixed(goal):
    return goal.stop_gradient if fw.__name__ == "paddle" else not goal.requires_grad
"""
BUGGY = {
    "a mean square": td("goal = reward + 0.9 * net(x * 0.5)  # CAUSE", "loss = F.mse_loss(net(x), goal)"),
    "a mask": td("goal = reward + 0.99 * net(x * 0.5) * alive  # CAUSE", "loss = F.smooth_l1_loss(net(x), goal)"),
    "a mask first": td("goal = reward + 0.99 * alive * net(x * 0.5)  # CAUSE", "loss = F.mse_loss(net(x), goal)"),
    "an error": td("goal = reward + 0.95 * net(x * 0.5)  # CAUSE", "loss = (goal - net(x)).pow(2).mean()"),
}
HEALTHY = {
    "detached": td("goal = reward + 0.9 * net(x * 0.5).detach()", "loss = F.mse_loss(net(x), goal)"),
    "no_grad": td(
        "with no_grad():", "    goal = reward + 0.9 * net(x * 0.5)", "loss = F.mse_loss(net(x), goal)"
    ).replace("no_grad()", "fw.no_grad()"),
    "a prediction": td("goal = reward", "loss = F.mse_loss(x[:, :1] + 0.9 * net(x), goal)"),
    "an average": td("goal = reward", "loss = 0.1 * F.mse_loss(net(x), goal) + 0.9 * F.mse_loss(net(x * 0.5), goal)"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": FIXED + part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": FIXED + part for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"bootstrapped-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_a_target_that_is_trained(runs: dict[str, Run], name: str) -> None:
    assert "wants False" in runs[f"buggy, {name}"].plain
    first = runs[f"buggy, {name}"].check_first("no-gradient")
    assert first["severity"] == "warning" and "carries gradients" in first["message"], first


@each
@named(HEALTHY, {})
def test_a_target_that_is_fixed(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert "wants True" in run.plain
    assert not [found for found in run.every if "carries gradients" in found["message"]], run
