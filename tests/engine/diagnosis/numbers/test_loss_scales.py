"""Steps with gradients of a scaled loss. Witness: how many times as large the gradients are."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, only
from support.short_programs import HEAD

SCALED = """
net = nn.Linear(6, 3)
optimizer = Sgd(net.parameters(), 1e-6)
scaler = fw.amp.GradScaler("cpu", init_scale=SCALE, enabled=ENABLED)
x = noise(32, 6)
class Trainer:
    def __init__(self):
        self.scaler = scaler
    def step(self, loss):
        self.scaler.scale(loss).backward()
        optimizer.step()
for step in range(6):
    loss = (net(x) - x[:, :3]).square().mean()
    plain = fw.autograd.grad(loss, net.weight, retain_graph=True)[0].abs().max()
    optimizer.zero_grad()
LINES
    print("times", float(net.weight.grad.abs().max() / plain) > 2)
"""


def scaled(*lines: str, scale: str = "1024.0", enabled: str = "True") -> str:
    body = "".join(f"    {each}\n" for each in lines)
    return SCALED.replace("LINES", body).replace("SCALE)", "SCALE").replace("SCALE", scale).replace("ENABLED", enabled)


BACK = "scaler.scale(loss).backward()"
BUGGY = {
    "a step of its own": scaled(BACK, "optimizer.step()  # CAUSE"),
    "half of it": scaled("scaler.scale(loss * 0.5).backward()", "optimizer.step()  # CAUSE"),
    "two statements": scaled("big = scaler.scale(loss)", "big.backward()", "optimizer.step()  # CAUSE", scale="8.0"),
}
HEALTHY = {
    "the scaler's step": scaled(BACK, "scaler.step(optimizer)", "scaler.update()"),
    "unscaled": scaled(BACK, "scaler.unscale_(optimizer)", "optimizer.step()", "scaler.update()"),
    "off": scaled(BACK, "optimizer.step()", enabled="False"),
    "none": scaled("loss.backward()", "optimizer.step()"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"scaled-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


torch_alone = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)


@only("torch", "on a CPU Paddle's scaler switches itself off")
@torch_alone
@pytest.mark.parametrize("name", list(BUGGY))
def test_a_step_that_nothing_unscales(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "times True" in run.plain, run
    assert run.check_first("loss-scale")["severity"] == "error"


@only("torch", "on a CPU Paddle's scaler switches itself off")
@torch_alone
@pytest.mark.parametrize("name", list(HEALTHY))
def test_a_step_that_is_right(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert not [found for found in run.every if found["kind"] == "loss-scale"], run
