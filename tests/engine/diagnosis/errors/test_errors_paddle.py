"""Errors, hooks that spoil gradients or pile up, and recomputed regions that differ, on Paddle: shapes beside those of
``test_functions_paddle``."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import numpy as np, paddle, paddle.nn as nn, paddle.nn.functional as F
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute
paddle.seed(3)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = paddle.optimizer.SGD(0.01, parameters=net.parameters())
def train(run=net, before=lambda: None):
    for _ in range(6):
        before()
        loss = run(paddle.randn([5, 4])).pow(2).mean()
        opt.clear_grad(); loss.backward(); opt.step()
"""
FOLDED = """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1D(1, 3, 3)
        self.head = nn.Linear(9, 1)  # CAUSE
    def forward(self, x):
        h = F.relu(self.conv(x.unsqueeze(1)))
        return self.head(h.flatten(1))
train(Net())
"""
# Weights that are written to while autograd records.
LEAF = """
def init(w):
    for i in range(3):
        w[i] = float(i)  # CAUSE
init(paddle.create_parameter([3], "float32"))
"""
STEP = """
for _ in range(2):
    net(paddle.ones([4, 4])).pow(2).mean().backward()
    for p in net.parameters():
        p.subtract_(0.1 * p.grad)  # CAUSE
"""
HOOK = """
mask = paddle.ones([5, 1])
def masked(grad):
    return paddle.matmul(grad, mask)  # CAUSE
net[0].weight.register_hook(masked)
train()
"""
INDEX = """
class Pick(PyLayer):
    @staticmethod
    def forward(ctx, x, place):
        ctx.save_for_backward(x)
        ctx.place = place
        return x[:, place]
    @staticmethod
    def backward(ctx, grad):
        x, mask = ctx.saved_tensor()  # CAUSE
        return grad.unsqueeze(1) * mask
class Model(nn.Layer):
    def forward(self, x):
        return Pick.apply(net[0](x), 2)
train(Model())
"""
NAN = """
class Normalised:
    def __init__(self, model):
        for p in model.parameters():
            p.register_hook(self.normalise)  # CAUSE
    def normalise(self, grad):
        return grad / (grad - grad.mean()).abs().max()
Normalised(net)
train()
"""
PILE_LOG = """
seen = []
class Logger:
    def __call__(self, grad):
        seen.append(float(grad.norm()))
def run(x):
    net[2].weight.register_hook(Logger())  # CAUSE
    return net(x)
train(run)
"""
PILE_FUNCTION = """
def halved(grad):
    return grad * 0.5
class Trainer:
    def prepare(self):
        for each in net.sublayers():
            for p in each.parameters(include_sublayers=False):
                p.register_hook(halved)  # CAUSE
train(before=Trainer().prepare)
"""
GENERATOR = """
generator = np.random.default_rng(0)
class Noisy(nn.Layer):
    def forward(self, x):
        x = net[0](x) * float(generator.uniform(0.5, 1.5))  # CAUSE
        return x.tanh()
noisy = Noisy()
def run(x):
    x.stop_gradient = False
    return net[2](recompute(noisy, x)).tanh()
train(run)
"""
STATE = """
class Counting(nn.Layer):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        h = net[0](x)
        h = h / self.calls  # CAUSE
        return h.tanh()
counting = Counting()
def run(x):
    x.stop_gradient = False
    return net[2](recompute(counting, x, use_reentrant=False))
train(run)
"""


CASES: list[tuple[str, str]] = [
    ("operator-error", FOLDED), ("operator-error", LEAF), ("operator-error", STEP), ("backward-error", HOOK),
    ("backward-error", INDEX), ("gradient-hook", NAN), ("hooks-pile-up", PILE_LOG),
    ("hooks-pile-up", PILE_FUNCTION), ("recompute-differs", GENERATOR), ("recompute-differs", STATE),
]  # fmt: skip

PROGRAMS = numbered(CASES)


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))
