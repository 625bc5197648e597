"""Two sizes that meet where no gradients are, in a target or an advantage, before a prediction does. Witness: the shape
of what came out, which the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
noise, no_grad = torch.randn, torch.no_grad
def sgd(parameters):
    return torch.optim.SGD(list(parameters), lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
def summed(value, axis, keep=False):
    return value.sum(axis, keepdim=keep)
""",
    "paddle": """
import paddle
from paddle import nn
import paddle.nn.functional as F
paddle.seed(0)
noise, no_grad = (lambda *shape: paddle.randn(shape)), paddle.no_grad
def sgd(parameters):
    return paddle.optimizer.SGD(0.01, parameters=list(parameters))
def clear(optimizer):
    optimizer.clear_grad()
def summed(value, axis, keep=False):
    return value.sum(axis, keepdim=keep)
""",
}

LOOP = """
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = sgd(net.parameters())
METHOD
for _ in range(4):
    x, later = noise(12, 4), noise(12, 4)
    reward, done = x[:, 0], (x[:, 1] > 0.5).astype("float32") if hasattr(x, "astype") else (x[:, 1] > 0.5).float()
    clear(optimizer)
    loss = loss_of(x, later, reward, done)
    loss.backward()
    optimizer.step()
"""


def _program(method: str) -> str:
    return LOOP.replace("METHOD", method)


BUGGY = {
    "target": _program("""
def target_of(later, reward, done):
    with no_grad():
        value = critic(later)
        return reward + 0.9 * (1 - done) * value  # CAUSE
def loss_of(x, later, reward, done):
    target = target_of(later, reward, done)
    print(list(target.shape))
    return F.mse_loss(net(x), target)
"""),
    "by hand": _program("""
def loss_of(x, later, reward, done):
    value = critic(later).detach()
    target = value + reward  # CAUSE
    print(list(target.shape))
    error = net(x) - target
    return (error ** 2).mean()
"""),
    "flat prediction": _program("""
def loss_of(x, later, reward, done):
    with no_grad():
        total = summed(later, 1, True)
    target = total * done  # CAUSE
    print(list(target.shape))
    return F.l1_loss(net(x)[:, 0], target)
"""),
    "advantage": _program("""
def loss_of(x, later, reward, done):
    with no_grad():
        advantage = reward - critic(x)  # CAUSE
    print(list(advantage.shape))
    chance = F.log_sigmoid(net(x))[:, 0] if hasattr(F, "log_sigmoid") else F.logsigmoid(net(x))[:, 0]
    return -(chance * advantage).mean()
"""),
}
HEALTHY = {
    "target": _program("""
def loss_of(x, later, reward, done):
    with no_grad():
        value = critic(later)[:, 0]
        target = reward + 0.9 * (1 - done) * value
    return F.mse_loss(net(x)[:, 0], target)
"""),
    "a table of pairs": _program("""
def loss_of(x, later, reward, done):
    total = summed(x, 1, True)
    near = total - reward
    scores = net(x) @ net(later).t()
    return ((scores - near) ** 2).mean()
"""),
    "a table that is looked at": _program("""
def loss_of(x, later, reward, done):
    with no_grad():
        apart = (critic(x) - reward).abs().mean()
    print(float(apart))
    return ((net(x)[:, 0] - reward) ** 2).mean()
"""),
    "a mask of pairs": _program("""
def loss_of(x, later, reward, done):
    column = summed(x, 1, True)
    both = column * done
    scores = net(x) + net(later).t()
    return (scores * both).mean()
"""),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {f"buggy {name}": HEAD[request.param] + text for name, text in BUGGY.items()}
    texts |= {f"healthy {name}": HEAD[request.param] + text for name, text in HEALTHY.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-broadcast-targets-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_target_that_has_both_sizes(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy {name}"]
    assert "[12, 12]" in run.plain
    first = run.check_first("loss-broadcast")
    assert first["severity"] == ("warning" if name == "advantage" else "error"), first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_tables_that_are_meant(runs: dict[str, Run], name: str) -> None:
    runs[f"healthy {name}"].check_healthy()
