"""Gradients with a graph, left by ``backward(create_graph=True)``. Witness: a weak reference to what lives on."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import only_here

pytestmark = only_here("torch", "a backward of Paddle's has no create_graph, only paddle.grad has")

HEAD = """
import torch, weakref
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.05)
"""
# A penalty on the gradient of the input, of which backward leaves a gradient behind.
PENALTY = (
    HEAD
    + """
def slope(x):
    x = x.detach().requires_grad_(True)
    alive.append(weakref.ref(x))
    (g,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return g.square().sum(1).mean()
alive = []
for _ in range(12):
    x = torch.randn(16, 4)
    loss = net(x).square().mean() + 0.1 * slope(x)
    optimizer.zero_grad()
    loss.backward(create_graph=True)  # CAUSE
    optimizer.step()
print("alive:", sum(each() is not None for each in alive))
"""
)
# The curvature along the gradient: one backward makes it, and another one goes through what that has left.
CURVATURE = (
    HEAD
    + """
class Adversary:
    def attack(self, x, y):
        noise = torch.zeros_like(x, requires_grad=True)
        loss = (net(x + noise) - y).square().mean()
        loss.backward(create_graph=True)  # CAUSE
        curved = loss + 0.1 * noise.grad.square().sum()
        return curved
for _ in range(12):
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    curved = Adversary().attack(x, x.sum(1, keepdim=True))
    optimizer.zero_grad()
    curved.backward()
    optimizer.step()
"""
)
# Gradients of parameters that are set to 0 where they lie keep what they were computed by.
SUMS = (
    HEAD
    + """
for _ in range(30):
    loss = net(torch.randn(16, 4)).square().mean()
    loss.backward(create_graph=True)  # CAUSE
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.05 * p.grad
    for p in net.parameters():
        p.grad = p.grad * 0
"""
)
# The right way: the gradient is asked for by itself.
ASKED = PENALTY.replace("loss.backward(create_graph=True)  # CAUSE", "loss.backward()")
# An optimizer of second order, behind whose step the gradients are gone.
SECOND = (
    HEAD
    + """
for _ in range(16):
    loss = net(torch.randn(16, 4)).square().mean()
    loss.backward(create_graph=True)
    grads = [p.grad for p in net.parameters()]
    probes = [torch.randn_like(p) for p in net.parameters()]
    curved = torch.autograd.grad(grads, list(net.parameters()), probes)
    with torch.no_grad():
        for p, c in zip(net.parameters(), curved):
            p -= 0.05 * p.grad / (c.abs() + 1)
    for p in net.parameters():
        p.grad = None
    del grads, curved, loss
"""
)
# Gradients of a few batches are summed with their graphs, and cleared behind each update.
SUMMED = (
    HEAD
    + """
for at in range(24):
    loss = net(torch.randn(16, 4)).square().mean() / 4
    loss.backward(create_graph=True)
    if at % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
)
# Inputs are kept for a while on purpose.
WINDOW = PENALTY.replace("alive.append(weakref.ref(x))", "kept.append(x); alive.append(weakref.ref(x))").replace(
    "    optimizer.step()\n",
    "    optimizer.step()\n    if len(kept) > 3:\n        kept.pop(0).grad = None\n",
).replace("alive = []", "alive, kept = [], []").replace("  # CAUSE", "")  # fmt: skip
BUGS = {"penalty": PENALTY, "curvature": CURVATURE, "sums": SUMS}
HEALTHY = {"asked": ASKED, "second": SECOND, "summed": SUMMED, "window": WINDOW}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each("torch", tmp_path_factory.mktemp("programs"), {**BUGS, **HEALTHY})


@pytest.mark.parametrize("name", BUGS)
def test_the_backward_that_leaves_a_cycle(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("graph-kept")
    assert "create_graph" in found["message"] and found["severity"] == "error", found


def test_what_lives_on_is_counted(runs: dict[str, Run]) -> None:
    assert "alive: 12" in runs["penalty"].output, runs["penalty"].output
    assert "alive: 1\n" in runs["asked"].output, "the last one is a local variable of nothing: its loss is there"
    (told,) = (each for each in runs["penalty"].told if each["kind"] == "graph-kept")
    assert "5, 6, 7, 8, 9" in told["evidence"][0], told


@pytest.mark.parametrize("name", HEALTHY)
def test_gradients_that_are_set_to_none(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
