"""Hooks of a forward that are registered on the same module again, iteration by iteration or epoch by epoch. Witness:
how many there are at the end, as the module itself says."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
noise, clear, LEFT = torch.randn, "zero_grad", "_forward_hooks"
BEFORE, BEHIND = "register_forward_pre_hook", "register_forward_hook"
def made(net):
    return torch.optim.SGD(net.parameters(), 0.01)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
noise, clear, LEFT = lambda *shape: paddle.randn(shape), "clear_grad", "_forward_post_hooks"
BEFORE, BEHIND = "register_forward_pre_hook", "register_forward_post_hook"
def made(net):
    return paddle.optimizer.SGD(0.01, parameters=net.parameters())
""",
}
COMMON = """
def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
def fit(net, optimizer, steps):
    for _ in range(steps):
        loss = net(noise(6, 4)).square().mean()
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
seen = []
def look(layer, given, got=None):
    seen.append(layer)
"""
ONE = """
net = model()
optimizer = made(net)
"""
EPOCHS = (
    ONE
    + """
class Widths:
    def __init__(self):
        self.all = {}
    def __call__(self, layer, given):
        self.all[id(layer)] = self.all.get(id(layer), 0) + 1
def attach(net):
    for layer in net[1], net[3]:
        getattr(layer, BEFORE)(Widths())  # CAUSE
for _ in range(4):
    attach(net)
    fit(net, optimizer, 4)
print("left", len(net[1]._forward_pre_hooks))
"""
)
STEPS = (
    ONE
    + """
for _ in range(6):
    getattr(net[2], BEHIND)(lambda layer, given, got: None)  # CAUSE
    fit(net, optimizer, 1)
print("left", len(getattr(net[2], LEFT)))
"""
)
# One for each of many modules, and three of the same code on one module.
ONCE = (
    ONE
    + """
for layer in net:
    getattr(layer, BEHIND)(look)
for kind in "abc":
    getattr(net[0], BEHIND)(lambda layer, given, got, kind=kind: None)
for _ in range(3):
    fit(net, optimizer, 3)
print("left", len(getattr(net[1], LEFT)))
"""
)
REMOVED = (
    ONE
    + """
for _ in range(4):
    handles = [getattr(layer, BEHIND)(look) for layer in net] + [getattr(layer, BEFORE)(look) for layer in net]
    fit(net, optimizer, 3)
    for handle in handles:
        handle.remove()
print("left", len(getattr(net[1], LEFT)))
"""
)
# A model of its own for each fold, which is likely to lie where the one before lay.
FOLDS = """
for fold in range(6):
    net = model()
    for kind in "abc":
        for layer in net:
            getattr(layer, BEHIND)(look)
    fit(net, made(net), 3)
    seen.clear()
print("left", len(getattr(net[1], LEFT)))
"""
LEFT = {"epochs": 4, "steps": 6, "once": 1, "removed": 0, "folds": 3}
PROGRAMS = {"epochs": EPOCHS, "steps": STEPS, "once": ONCE, "removed": REMOVED, "folds": FOLDS}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + COMMON + text for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-pile-up-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", ["epochs", "steps"])
def test_they_become_more(runs: dict[str, Run], name: str) -> None:
    assert f"left {LEFT[name]}" in runs[name].plain
    message = runs[name].check_first("hooks-pile-up")["message"]
    assert ("every 4 iterations" if name == "epochs" else "in each iteration") in message, message


@each
@pytest.mark.parametrize("name", ["once", "removed", "folds"])
def test_as_many_as_before(runs: dict[str, Run], name: str) -> None:
    assert f"left {LEFT[name]}" in runs[name].plain
    runs[name].check_healthy()
