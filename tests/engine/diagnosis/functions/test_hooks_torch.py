"""Hooks that spoil gradients or pile up, checkpoints that compute something else, contexts that keep their result."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import random, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
torch.manual_seed(3)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.01)
def train(run=net, before=lambda: None):
    for _ in range(6):
        before()
        loss = run(torch.randn(5, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""
ZERO = """
def freeze(grad):
    return torch.zeros_like(grad)
net[0].weight.register_hook(freeze)  # CAUSE
train()
"""
NAN = """
class Normalised:
    def __init__(self, model):
        for p in model.parameters():
            p.register_hook(self.normalise)  # CAUSE
    def normalise(self, grad):
        return grad / (grad - grad.mean()).std()
Normalised(net)
train()
"""
SCALED = """
def run(x):
    h = net[:2](x)
    h.register_hook(lambda grad: grad.mul_(1000.0))  # CAUSE
    return net[2](h)
train(run)
"""
PILE = """
def run(x):
    net[2].weight.register_hook(lambda grad: grad.clamp(-1, 1))  # CAUSE
    return net(x)
train(run)
"""
PILE_LOG = """
seen = []
class Logger:
    def __call__(self, grad):
        seen.append(grad.norm().item())
def attach():
    for p in net[0].parameters():
        p.register_hook(Logger())  # CAUSE
train(before=attach)
"""
PILE_MODULE = """
def report(module, given, got):
    pass
def run(x):
    net[0].register_full_backward_hook(report)  # CAUSE
    return net(x)
train(run)
"""
UNRESTORED = """
def block(x):
    return F.dropout(net[:2](x), 0.5)
def run(x):
    x.requires_grad_()
    h = checkpoint(block, x, use_reentrant=True, preserve_rng_state=False)  # CAUSE
    return net[2](h)
train(run)
"""
PYTHON_RANDOM = """
class Noisy(nn.Module):
    def forward(self, x):
        x = net[0](x) * random.uniform(0.5, 1.5)  # CAUSE
        return x.tanh()
noisy = Noisy()
train(lambda x: net[2](checkpoint(noisy, x, use_reentrant=False)).tanh())
"""
# Drawn on a line of its own, by NumPy's generator.
NUMPY_RANDOM = """
import numpy as np
rng = np.random.default_rng(0)
class Noisy(nn.Module):
    def forward(self, x):
        h = net[0](x)
        gain = rng.lognormal(0.0, 0.6, size=(h.shape[0], 1))  # CAUSE
        return (h * torch.as_tensor(gain, dtype=h.dtype)).tanh()
noisy = Noisy()
train(lambda x: net[2](checkpoint(noisy, x, use_reentrant=False)).tanh())
"""
STATE = """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        h = net[0](x)
        h = h / self.calls  # CAUSE
        return h.tanh()
counting = Counting()
train(lambda x: net[2](checkpoint(counting, x.requires_grad_(), use_reentrant=True)))
"""
# The second pass ends behind tanh, whose result is all that it is for: no operator differs, but every pass counts.
COUNTED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.layer(x)) * self.calls  # CAUSE
block = Block()
train(lambda x: checkpoint(block, x, use_reentrant=False) + net(x))
"""
KEEPS = """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.result = y  # CAUSE
        return y
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.result
train(lambda x: Exp.apply(net(x)))
"""
OVERWRITES = """
class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mask = x.abs() < 1
        x.clamp_(-1, 1)  # CAUSE
        return x * 1.0
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask
train(lambda x: Clamp.apply(net(x)))
"""


CASES: list[tuple[str, str]] = [
    ("gradient-hook", ZERO), ("gradient-hook", NAN), ("gradient-hook", SCALED),
    ("hooks-pile-up", PILE), ("hooks-pile-up", PILE_LOG), ("hooks-pile-up", PILE_MODULE),
    ("recompute-differs", UNRESTORED), ("recompute-differs", PYTHON_RANDOM), ("recompute-differs", NUMPY_RANDOM),
    ("recompute-differs", STATE),
    ("recompute-differs", COUNTED),
    ("function-keeps-output", KEEPS), ("function-input-overwritten", OVERWRITES),
]  # fmt: skip

PROGRAMS = numbered(CASES)


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))
