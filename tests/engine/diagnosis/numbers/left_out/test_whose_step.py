"""A loss that is not finite, of one of two optimizers: whose step is left out, or made after all, and who cleared the
gradients. Witness: the weights at the end, which the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
noise, whole = fw.randn, fw.tensor
def made(net):
    return fw.optim.SGD(net.parameters(), lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
noise, whole = lambda *shape: fw.randn(shape), fw.to_tensor
def made(net):
    return fw.optimizer.SGD(0.01, parameters=net.parameters())
def clear(optimizer):
    optimizer.clear_grad()
""",
}
TWO = """
actor, critic = (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)) for _ in range(2))
first, second = made(actor), made(critic)
def usable(net):
    return all(bool(fw.isfinite(each.grad).all()) for each in net.parameters())
def of_actor(x, count):
    rate = fw.log(whole([count]))  # CAUSE
    return (actor(x) - rate).square().mean()
def of_critic(x):
    return (critic(x) - x[:, 1:2]).square().mean()
for count in [2.0, 3.0, 0.0, 1.0, 2.0, 4.0, 1.0]:
    x = noise(8, 4)
BODY
print("weights", "finite" if bool(fw.isfinite(actor[0].weight).all()) else "spoilt")
"""


def program(body: str) -> str:
    return TWO.replace("BODY", "\n".join("    " + line for line in body.strip().splitlines()))


LEFT_OUT = {
    "each by itself": program("""
clear(first)
of_actor(x, count).backward()
if usable(actor):
    first.step()
clear(second)
of_critic(x).backward()
second.step()
"""),
    "the other one steps": program("""
clear(first)
clear(second)
of_actor(x, count).backward()
of_critic(x).backward()
if usable(actor):
    first.step()
if usable(critic):
    second.step()
"""),
}
STEPPED = {
    "the other one first": program("""
clear(first)
clear(second)
of_actor(x, count).backward()
of_critic(x).backward()
second.step()
first.step()
"""),
    "the other one is cleared": program("""
clear(first)
of_actor(x, count).backward()
clear(second)
of_critic(x).backward()
second.step()
first.step()
"""),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in (LEFT_OUT | STEPPED).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-whose-step-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", LEFT_OUT)
def test_its_own_step_is_left_out(runs: dict[str, Run], name: str) -> None:
    assert "weights finite" in runs[name].plain, runs[name].plain
    runs[name].check_healthy("nonfinite")
    runs[name].check_first("nonfinite")


@each
@pytest.mark.parametrize("name", STEPPED)
def test_its_own_step_is_made(runs: dict[str, Run], name: str) -> None:
    assert "weights spoilt" in runs[name].plain, runs[name].plain
    first = runs[name].check_first("nonfinite")
    assert first["severity"] == "error", first
    assert "between backward and step" not in first["message"], "backward gave it"
    assert not any("no node of the backward gave" in line for line in first["evidence"]), first["evidence"]
