"""Terms of a loss that are made of gradients without a graph. Witness: the same gradient of the weights where the term
is left out of the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
noise, clear, tanh, sin, mean = torch.randn, "zero_grad", torch.tanh, torch.sin, torch.mean
grad = torch.autograd.grad
def inputs(*shape):
    return torch.randn(*shape, requires_grad=True)
def made(*nets):
    return torch.optim.SGD([p for net in nets for p in net.parameters()], 0.01)
def norm(value):
    return value.square().sum(1).sqrt()
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
noise, clear, tanh, sin, mean = lambda *shape: paddle.randn(shape), "clear_grad", paddle.tanh, paddle.sin, paddle.mean
grad = paddle.grad
def inputs(*shape):
    x = paddle.randn(shape)
    x.stop_gradient = False
    return x
def made(*nets):
    return paddle.optimizer.SGD(0.01, parameters=[p for net in nets for p in net.parameters()])
def norm(value):
    return value.square().sum(1).sqrt()
""",
}
COMMON = """
def model(wide=2):
    return nn.Sequential(nn.Linear(wide, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
net = model()
optimizer = made(net)
def train(loss_of, steps=9):
    for _ in range(steps):
        loss = loss_of()
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
        print(float(loss))
"""
# A helper makes the call: which of its callers leaves the graph out.
HELPER = """
def slope(y, x, keep=False):
    return grad(y.sum(), x, create_graph=keep)[0]
def residual(x):
    first = slope(net(x), x, keep=True)
    second = slope(first[:, 0:1], x)  # CAUSE
    return second[:, 0:1] + 3 * sin(x[:, 1:2])
train(lambda: (residual(inputs(16, 2)) ** 2).mean() + 10 * net(noise(4, 2)).square().mean())
"""
PENALTY = """
class Critic:
    weight = 10.0
    def penalty(self, real, fake):
        mixed = (0.5 * real + 0.5 * fake).detach()
        NEEDS
        slopes = grad(net(mixed).sum(), mixed)[0]  # CAUSE
        return self.weight * ((norm(slopes) - 1) ** 2).mean()
    def loss(self):
        real, fake = noise(16, 2) + 2, noise(16, 2)
        total = net(fake).mean() - net(real).mean()
        total += self.penalty(real, fake)
        return total
train(Critic().loss)
"""
# One of two slopes has its graph, and the residual is made of both.
PARTLY = """
def loss():
    x = inputs(16, 2)
    u = net(x)
    first = grad(u.sum(), x, create_graph=True)[0]
    along, across = first[:, 0:1], first[:, 1:2]
    second = grad(across.sum(), x, retain_graph=True)[0][:, 1:2]  # CAUSE
    residual = along + u * across - 0.1 * second
    return residual.square().mean() + net(noise(4, 2)).square().mean()
train(loss)
"""
# Of the weights themselves.
FLAT = """
def loss():
    task = (net(noise(16, 2)) - 1).square().mean()
    slopes = grad(task, list(net.parameters()), retain_graph=True)  # CAUSE
    flat = sum(each.square().sum() for each in slopes)
    return task + 0.1 * flat
train(loss)
"""
ALONE = """
def loss():
    x = inputs(16, 2)
    slopes = grad(net(x).sum(), x, create_graph=True)[0]
    value = (norm(slopes) - 1).square().mean()
    return value + net(x).square().mean()
train(loss)
"""
FAST_SIGN = """
def loss():
    x = inputs(16, 2)
    y = (net(x) - 1).square().mean()
    slope = grad(y, x, retain_graph=True)[0]
    return y + (net(x + 0.1 * slope.sign()) - 1).square().mean() + (net(x + 0.1 * slope) - 1).square().mean()
train(loss)
"""
# What these programs do not use is freed now: an optimizer of Paddle's that was replaced lives until Python collects
# its cycle, and that it never steps would be said of it, or not, by when that is.
FREED = """
import gc
del net, optimizer
gc.collect()
"""
HIDDEN = (
    FREED
    + """
front, back = nn.Linear(2, 8), nn.Linear(8, 1)
optimizer = made(front, back)
def loss():
    hidden = front(noise(16, 2))
    y = (back(hidden) - 1).square().mean()
    slope = grad(y, hidden, retain_graph=True)[0]
    away = hidden + 0.5 * slope / (slope * slope).sum().sqrt()
    return y + (back(away) - 1).square().mean()
train(loss)
"""
)
WEIGHTS = """
def loss():
    one, other = (net(noise(16, 2)) - 1).square().mean(), net(noise(16, 2)).abs().mean()
    a, b = (grad(each, net[4].weight, retain_graph=True)[0].square().sum().sqrt() for each in (one, other))
    return one + a / (b + 1e-4) * other + one / (1 + a)
train(loss)
"""
PRINTED = """
def loss():
    x = inputs(16, 2)
    y = net(x)
    value = y.square().mean()
    slopes = norm(grad(y.sum(), x, retain_graph=True)[0]).mean()
    print("slope", float(slopes), float(value + slopes))
    return value
train(loss)
"""
SAMPLER = """
def loss():
    x = inputs(16, 2)
    for _ in range(3):
        slope = grad(net(x).sum(), x)[0]
        x = (x - 0.1 * slope + 0.01 * noise(16, 2)).detach()
        NEEDS
    return net(noise(16, 2)).mean() - net(x.detach()).mean() + net(x).square().mean()
train(loss)
"""
INNER = (
    FREED
    + """
class Line(nn.Layer if hasattr(nn, "Layer") else nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(1, 1)
    def forward(self):
        return self.only.weight, self.only.bias
line = Line()
optimizer = made(line)
def loss():
    a, b = line()
    for _ in range(2):
        x = noise(8, 1)
        inner = (a * x + b - 2 * x).square().mean()
        slopes = grad(inner, [a, b])
        a, b = a - 0.1 * slopes[0], b - 0.1 * slopes[1]
    x = noise(8, 1)
    return (a * x + b - 2 * x).square().mean()
train(loss)
"""
)
TARGET = """
other = model()
def loss():
    x = inputs(16, 2)
    slope = grad(net(x).sum(), x)[0].detach()
    frozen = grad(other(x).sum(), x)[0]
    return (net(noise(16, 2)) - slope[:, 0:1]).square().mean() + (net(noise(16, 2)) - frozen[:, 0:1]).square().mean()
train(loss)
"""
# Nothing else is in the loss, which has no graph then.
ONLY = """
def loss():
    x = inputs(16, 2)
    slopes = grad(net(x).sum(), x)[0]  # CAUSE
    return (norm(slopes) - 1).square().mean()
train(loss)
"""
BUGS = {"helper": HELPER, "penalty": PENALTY, "partly": PARTLY, "flat": FLAT}
HEALTHY = {
    "alone": ALONE, "fast-sign": FAST_SIGN, "hidden": HIDDEN, "weights": WEIGHTS, "printed": PRINTED,
    "sampler": SAMPLER, "inner": INNER, "target": TARGET,
}  # fmt: skip
NOTES = {"inner": ("no-gradient",)}  # its steps are of the first order
NEEDS = {"torch": {"penalty": "mixed.requires_grad_()", "sampler": "x.requires_grad_()"},
         "paddle": {"penalty": "mixed.stop_gradient = False", "sampler": "x.stop_gradient = False"}}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    texts = {
        name: HEAD[framework] + COMMON + text.replace("NEEDS", NEEDS[framework].get(name, ""))
        for name, text in {**BUGS, **HEALTHY}.items()
    }
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-graphless-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGS)
def test_a_term_has_no_graph(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("no-gradient")
    assert "create_graph=True" in first["message"], first["message"]
    assert any("is added at" in line for line in first["evidence"]), first["evidence"]


@pytest.mark.torch
def test_all_of_the_loss_has_no_graph(tmp_path: Path) -> None:
    run = diagnose_each("torch", tmp_path, {"only": HEAD["torch"] + COMMON + ONLY})["only"]
    assert "create_graph=True" in run.check_first("no-gradient")["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_no_term_is_missing(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*NOTES.get(name, ()))
