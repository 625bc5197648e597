"""Gradients that cancel: what is drawn by ``rsample``, and its log-probability by the same mean. Witness: the program's
own gradients, which are 0 to the bit."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.distributions import Normal
fw.manual_seed(0)
randn, ones, no_grad = fw.randn, fw.ones, fw.no_grad
Base = nn.Module
def number(*shape):
    return nn.Parameter(fw.zeros(shape))
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.distribution import Normal
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
def ones(*shape):
    return fw.ones(shape)
no_grad, Base = fw.no_grad, nn.Layer
def number(*shape):
    return fw.create_parameter(shape, "float32", default_initializer=nn.initializer.Constant(0.0))
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.back = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(2, 4)
        self.spread = number(2)
    def forward(self, x):
        return self.mean(fw.tanh(self.body(x)))
net = Net()
optimizer, clear = sgd(net)
x, reward = randn(8, 4), randn(8, 1)
std = ones(8, 2) * 0.5
sizes = []
for at in range(6):
    mean = net(x)
    LOSS
    loss = loss + 1e-3 * net.back(ones(1, 2)).square().mean() + 1e-3 * net.spread.square().sum()
    clear()
    loss.backward()
    sizes.append(net.mean.weight.grad.abs().sum().item())
    optimizer.step()
print("gradients:", "all 0" if max(sizes) == 0 else "some")
"""


def loss(*lines: str) -> str:
    return START.replace("LOSS", "\n    ".join(lines))


BUGGY = {
    "a policy": loss("policy = Normal(mean, std)", "action = policy.rsample()  # CAUSE",
                     "loss = -(policy.log_prob(action).sum(-1, keepdim=True) * reward).mean()"),
    "a policy, its spread trained": loss(
        "policy = Normal(mean, std * fw.exp(net.spread))", "action = policy.rsample()  # CAUSE",
        "loss = -(policy.log_prob(action).sum(-1, keepdim=True) * reward).mean()"),
    "with a ratio": loss(
        "policy = Normal(mean, std)", "action = policy.rsample()  # CAUSE", "logs = policy.log_prob(action).sum(-1)",
        "loss = -((logs - logs.detach()).exp() * reward[:, 0]).mean()"),
    "by hand": loss("action = mean + std * randn(8, 2)  # CAUSE",
                    "logs = -((action - mean) / std).square().sum(-1) / 2",
                    "loss = -(logs * reward[:, 0]).mean()"),
}  # fmt: skip
SAMPLE = loss("policy = Normal(mean, std)", "action = policy.sample()  # CAUSE",
              "loss = -(policy.log_prob(action).sum(-1, keepdim=True) * reward).mean()")  # fmt: skip
HEALTHY = {
    "rsample, detached": loss("policy = Normal(mean, std)", "action = policy.rsample().detach()",
                              "loss = -(policy.log_prob(action).sum(-1, keepdim=True) * reward).mean()"),
    "by hand, detached": loss("action = (mean + std * randn(8, 2)).detach()",
                              "logs = -((action - mean) / std).square().sum(-1) / 2",
                              "loss = -(logs * reward[:, 0]).mean()"),
    "a VAE": loss("code = Normal(mean, std * fw.exp(net.spread))", "z = code.rsample()",
                  "prior = Normal(ones(8, 2) * 0, ones(8, 2))", "kl = (code.log_prob(z) - prior.log_prob(z)).sum(-1)",
                  "loss = (net.back(z) - x).square().mean() + 0.1 * kl.mean()"),
    "only the divergence of a VAE": loss(
        "code = Normal(mean, std * fw.exp(net.spread))", "z = code.rsample()",
        "prior = Normal(ones(8, 2) * 0, ones(8, 2))", "loss = (code.log_prob(z) - prior.log_prob(z)).sum(-1).mean()"),
    "a soft critic": loss("policy = Normal(mean, std)", "action = policy.rsample()",
                          "loss = (0.1 * policy.log_prob(action).sum(-1) - net.back(action).sum(-1)).mean()"),
    "a critic of two batches": loss("other = net(randn(8, 4))", "loss = mean.mean() - other.mean()"),
    "better and worse": loss("other = net(randn(8, 4))", "loss = fw.log(1 + fw.exp(other - mean)).mean()"),
    "the first one is 0": loss("loss = (mean - mean.detach() * (at > 0) - (1 - (at > 0)) * mean).square().mean()",
                               "loss = loss + (at > 0) * mean.square().mean()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + part for name, part in (BUGGY | HEALTHY | {"sample": SAMPLE}).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"cancelled-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)
torch = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
paddle = pytest.mark.parametrize("runs", [cases["paddle"]], indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_draws(runs: dict[str, Run], name: str) -> None:
    assert "gradients: all 0\n" in runs[name].plain, runs[name]
    first = runs[name].check_first("zero-gradient")
    assert "cancels exactly" in first["message"] and "mean.weight" in first["message"], first
    assert "their sum is 0 in all elements" in first["evidence"], first


@torch
def test_a_sample_has_no_gradient(runs: dict[str, Run]) -> None:
    assert "gradients: some\n" in runs["sample"].plain, runs["sample"]
    runs["sample"].check_healthy()


@paddle
def test_a_sample_of_paddle_has_one(runs: dict[str, Run]) -> None:
    """``Normal.sample`` of Paddle is computed with gradients, as ``rsample`` is."""
    assert "gradients: all 0\n" in runs["sample"].plain, runs["sample"]
    assert "cancels exactly" in runs["sample"].check_first("zero-gradient")["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_gradients_that_stay(runs: dict[str, Run], name: str) -> None:
    assert "gradients: some\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
