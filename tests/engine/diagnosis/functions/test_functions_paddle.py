"""The same on Paddle: PyLayers, errors, hooks and recomputed regions, and healthy ones."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import random, paddle, paddle.nn as nn, paddle.nn.functional as F
from paddle.autograd import PyLayer
from paddle.distributed.fleet.utils import recompute
paddle.seed(3)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = paddle.optimizer.SGD(0.01, parameters=net.parameters())
def train(run=net, before=lambda: None):
    for _ in range(5):
        before()
        loss = run(paddle.randn([5, 4])).pow(2).mean()
        opt.clear_grad(); loss.backward(); opt.step()
"""
FACTOR = """
class Square(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensor()
        return grad * x  # CAUSE
train(lambda x: Square.apply(net(x)))
"""
TERM = """
class Gelu(PyLayer):
    @staticmethod
    def forward(ctx, x):
        s = F.sigmoid(1.702 * x)
        ctx.save_for_backward(x, s)
        return x * s
    @staticmethod
    def backward(ctx, grad):
        x, s = ctx.saved_tensor()
        slope = s + x * s * (1 - s)  # CAUSE
        gx = grad * slope
        return gx
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.act = Gelu.apply
    def forward(self, x):
        return net[2](self.act(net[0](x)))
train(Net())
"""
UNWRITTEN = """
class Relu(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.relu(x)
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensor()
        out = paddle.empty_like(x)  # CAUSE
        out[0] = grad[0]
        return out
train(lambda x: net[2](Relu.apply(net[0](x))))
"""
NONE = """
class Add(PyLayer):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias
    @staticmethod
    def backward(ctx, grad):
        return grad, None  # CAUSE
bias = paddle.create_parameter([1], "float32")
train(lambda x: Add.apply(net(x), bias))
"""
LAYER = """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(5, 1)  # CAUSE
    def forward(self, x):
        return self.second(self.first(x).tanh())
train(Net())
"""
DTYPE = """
import numpy as np
def fit(x):
    return net(x).mean()
batch = paddle.to_tensor(np.random.rand(5, 4))  # CAUSE
fit(batch).backward()
"""
SHAPE = """
class Linear(PyLayer):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensor()
        gw = g.T @ x  # CAUSE
        return g @ w.T, gw
w = paddle.create_parameter([1, 3], "float32")
train(lambda x: Linear.apply(net(x), w))
"""
OWN = """
class Act(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensor()
        return grad @ x  # CAUSE
train(lambda x: Act.apply(net[0](x)))
"""
ZERO = """
def freeze(grad):
    return paddle.zeros_like(grad)
net[0].weight.register_hook(freeze)  # CAUSE
train()
"""
SCALED = """
def run(x):
    h = net[1](net[0](x))
    h.register_hook(lambda grad: grad * 1000.0)  # CAUSE
    return net[2](h)
train(run)
"""
PILE = """
def attach():
    for p in net[2].parameters():
        p.register_hook(lambda grad: grad.clip(-1.0, 1.0))  # CAUSE
train(before=attach)
"""
# Drawn on a line of its own, by NumPy's generator.
NUMPY_RANDOM = """
import numpy as np
rng = np.random.default_rng(0)
def block(x):
    h = net[0](x)
    gain = rng.lognormal(0.0, 0.6, size=(h.shape[0], 1))  # CAUSE
    return F.tanh(h * paddle.to_tensor(gain, dtype="float32"))
def run(x):
    x.stop_gradient = False
    return net[2](recompute(block, x))
train(run)
"""
# Passed on without a name: what it is given is computed in the call.
DOUBLE = """
import numpy as np
class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, t):
        return self.net(2 * t - 1)
times = paddle.to_tensor(np.random.rand(5, 4), stop_gradient=False)  # CAUSE
Model()(times).mean().backward()
"""
WIDENED = """
import numpy as np
class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1D(1, 2, 3, padding=1), nn.BatchNorm1D(2), nn.ReLU())
        self.fc = nn.Linear(2, 1)
    def forward(self, x):
        return self.fc(self.features(x).mean(-1))
model, rng = Model(), np.random.default_rng(0)
for epoch in range(2):
    rows = rng.random((5, 1, 8), dtype="float32")
    if epoch:
        rows = rng.beta(0.4, 0.4, size=(5, 1, 1)) * rows
    rows = paddle.to_tensor(rows)  # CAUSE
    model(rows).mean().backward()
"""
UNRESTORED = """
def block(x):
    return F.dropout(net[1](net[0](x)), 0.5)
def run(x):
    x.stop_gradient = False
    return net[2](recompute(block, x, preserve_rng_state=False))  # CAUSE
train(run)
"""
HEALTHY = """
class Swish(PyLayer):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * F.sigmoid(beta * x)
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensor()
        s = F.sigmoid(ctx.beta * x)
        return grad * (s + ctx.beta * x * s * (1 - s))
class Quantise(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return paddle.round(x * 8) / 8
    @staticmethod
    def backward(ctx, grad):
        return grad
class Reverse(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return -0.1 * grad
class Drop(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.keep = (paddle.rand(x.shape) > 0.3).astype(x.dtype)
        return x * ctx.keep
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.keep
class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
    def forward(self, x):
        return F.dropout(F.relu(self.a(x)), 0.3, training=self.training)
block = Block()
opt = paddle.optimizer.SGD(0.01, parameters=[*net.parameters(), *block.parameters()])
norms = []
net[0].weight.register_hook(lambda grad: grad.clip(-0.5, 0.5))
net[2].weight.register_hook(lambda grad: norms.append(float(grad.norm())))
def run(x):
    handle = net[2].bias.register_hook(lambda grad: None)
    h = Swish.apply(net[0](x), 1.5)
    h.register_hook(lambda grad: norms.append(float(grad.sum())))
    h = recompute(block, h)
    h = recompute(block, h, use_reentrant=False)
    out = net[2](Quantise.apply(Reverse.apply(Drop.apply(h))))
    handle.remove()
    print(float(out.sum()), norms[-2:])
    return out
train(run)
print(paddle.rand([2]).tolist())
"""


CASES: list[tuple[str, str]] = [
    ("wrong-derivative", FACTOR), ("wrong-derivative", TERM), ("uninitialised", UNWRITTEN),
    ("missing-gradient", NONE), ("operator-error", LAYER), ("operator-error", DTYPE), ("operator-error", DOUBLE),
    ("operator-error", WIDENED),
    ("recompute-differs", NUMPY_RANDOM),
    ("function-contract", SHAPE), ("backward-error", OWN), ("gradient-hook", ZERO), ("gradient-hook", SCALED),
    ("hooks-pile-up", PILE), ("recompute-differs", UNRESTORED),
]  # fmt: skip

PROGRAMS = numbered(CASES) | {"healthy": HEALTHY}


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_to_change_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_functions_hooks_and_regions_as_they_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("wrong-derivative", "wrong-derivative")
