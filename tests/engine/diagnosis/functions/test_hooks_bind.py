"""Hooks of a loop that share its variable, and hooks that give back a gradient of an earlier iteration."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
noise, clear, AFTER, no_grad = torch.randn, "zero_grad", "register_forward_hook", torch.no_grad
def made(net):
    return torch.optim.SGD(net.parameters(), 0.05)
torch_like = True
def ones(value):
    return torch.ones_like(value)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
noise, clear, no_grad = lambda *shape: paddle.randn(shape), "clear_grad", paddle.no_grad
AFTER = "register_forward_post_hook"
def made(net):
    return paddle.optimizer.SGD(0.05, parameters=net.parameters())
torch_like = False
def ones(value):
    return paddle.ones_like(value)
""",
}
COMMON = """
net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
LAYERS = [net[0], net[2], net[4]]
def fit(steps):
    optimizer = made(net)
    for step in range(steps):
        loss = net(noise(8, 6)).square().mean()
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
    for layer in LAYERS:
        print("norm", float(layer.weight.grad.norm()))
"""
MASK = """
class Pruner:
    def __init__(self, layers):
        self.layers = layers
    def attach(self):
        for number, layer in enumerate(self.layers):
            mask = ones(layer.weight) * (number % 2)
            layer.weight.register_hook(lambda grad: grad * mask)  # CAUSE
fit(3)
Pruner(LAYERS).attach()
fit(12)
"""
NAMES = """
seen = {}
for name, layer in zip("abc", LAYERS):
    getattr(layer, AFTER)(lambda layer, given, got: seen.__setitem__(name, float(got.mean())))  # CAUSE
fit(8)
assert list(seen) == ["c"], seen
"""
RATES = """
RATES = [0.5, 2.0, 0.0]
def attach():
    for place, layer in enumerate(LAYERS):
        def scaled(grad):
            return grad * RATES[place]
        layer.weight.register_hook(scaled)  # CAUSE
attach()
fit(12)
"""
SETDEFAULT = """
class Recorder:
    def __init__(self):
        self.first = {}
    def looking(self, name):
        return lambda grad: self.first.setdefault(name, grad)  # CAUSE
recorder = Recorder()
for name, layer in zip("abc", LAYERS):
    layer.weight.register_hook(recorder.looking(name))
fit(12)
"""
CACHED = """
kept = []
def probe(grad):
    if not kept:
        kept.append(grad.clone())
    return kept[0]  # CAUSE
LAYERS[1].weight.register_hook(probe)
fit(12)
"""
DEFAULT = """
for number, layer in enumerate(LAYERS):
    layer.weight.register_hook(lambda grad, scale=0.5 + number: grad * scale)
fit(8)
"""
FACTORY = """
def scaling(number):
    return lambda grad: grad * (0.5 + number)
for number, layer in enumerate(LAYERS):
    layer.weight.register_hook(scaling(number))
fit(8)
"""
OUTER = """
step = 0
for layer in LAYERS:
    layer.weight.register_hook(lambda grad: grad * (1.0 if step >= 0 else 0.5))
for step in range(4):
    fit(2)
"""
MOMENTUM = """
kept = {}
def smooth(grad):
    if "mean" not in kept:
        kept["mean"] = grad.detach().clone()
    mean = kept["mean"]
    with no_grad():  # Paddle's hooks run with gradients on
        mean.scale_(0.9) if hasattr(mean, "scale_") else mean.mul_(0.9)
        mean.add_(grad)
    return mean if torch_like else mean.clone()  # Paddle's clear_grad() writes zeros into what a hook gave back
LAYERS[0].weight.register_hook(smooth)
fit(12)
"""
# The variable is that of the outer one of two loops.
NESTED = """
def slower(layers):
    for depth, layer in enumerate(reversed(layers)):
        factor = 0.5 ** depth
        for parameter in layer.parameters():
            parameter.register_hook(lambda grad: grad * factor)  # CAUSE
slower(LAYERS)
fit(12)
"""
# A loop that trains, and hooks that are to see its own step.
TRAINING = """
def train():
    for step in range(4):
        handles = [layer.weight.register_hook(lambda grad: grad * (1.0 + step)) for layer in LAYERS]
        fit(2)
        for handle in handles:
            handle.remove()
train()
"""
BUGGY = {"nested": NESTED, "mask": MASK, "names": NAMES, "rates": RATES, "setdefault": SETDEFAULT, "cached": CACHED}
HEALTHY = {"default": DEFAULT, "factory": FACTORY, "outer": OUTER, "momentum": MOMENTUM, "training": TRAINING}
NOTED = ("default", "factory", "momentum", "training")  # that hooks change gradients
EARLIER = ("setdefault", "cached")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + COMMON + text for name, text in {**BUGGY, **HEALTHY}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-bind-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_hook_is_told_of(runs: dict[str, Run], name: str) -> None:
    told = runs[name].check_first("gradient-hook" if name in EARLIER else "late-binding")
    assert told["severity"] == ("warning" if name == "names" else "error"), told


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_bound_at_once_or_meant(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*(["gradient-hook"] if name in NOTED else []))
