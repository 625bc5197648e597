"""Custom functions whose backward is wrong: by a factor, in a term, for one input, never written, not given."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import torch, torch.nn as nn
torch.manual_seed(3)
"""
FACTOR = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * x  # CAUSE

w = nn.Parameter(torch.randn(5))
opt = torch.optim.SGD([w], 0.01)
for _ in range(3):
    opt.zero_grad(); Square.apply(w).sum().backward(); opt.step()
"""
TERM = """
class Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = 1 / (1 + (-x).exp())
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, grad_output):
        y, = ctx.saved_tensors
        slope = y * (1 + y)  # CAUSE
        grad_input = grad_output * slope
        return grad_input

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(4, 8), nn.Linear(8, 1)
        self.act = Sigmoid.apply
    def forward(self, x):
        return self.out(self.act(self.fc(x)))

net = Net(); opt = torch.optim.Adam(net.parameters())
def train():
    for _ in range(3):
        loss = net(torch.randn(6, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
train()
"""
ONE_INPUT = """
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight
        grad_weight = grad.t() @ x
        grad_bias = grad.mean(0)  # CAUSE
        return grad_x, grad_weight, grad_bias

def step(x, w, b):
    Linear.apply(x, w, b).tanh().sum().backward()
w, b = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.zeros(3))
for _ in range(2):
    step(torch.randn(6, 4), w, b)
"""
UNWRITTEN = """
class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        result = torch.empty_like(x)  # CAUSE
        result[x > 0] = grad[x > 0]
        return result

w = nn.Parameter(torch.randn(50))
Relu.apply(w).sum().backward()
"""
UNWRITTEN_ROWS = """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, rows):
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table[rows]
    @staticmethod
    def backward(ctx, grad):
        rows, = ctx.saved_tensors
        out = grad.new_empty(ctx.shape)  # CAUSE
        out.index_copy_(0, rows, grad)
        return out, None

table = nn.Parameter(torch.randn(9, 3))
for _ in range(2):
    Gather.apply(table, torch.tensor([1, 4])).pow(2).sum().backward()
"""
UNWRITTEN_LAST = """
class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:, 1:] - x[:, :-1]
    @staticmethod
    def backward(ctx, g):
        dx = torch.empty(g.shape[0], g.shape[1] + 1, dtype=g.dtype)  # CAUSE
        dx[:, 1:-1] = g[:, :-1] - g[:, 1:]
        dx[:, 0] = -g[:, 0]
        return dx

x = torch.randn(4, 6, requires_grad=True)
Shift.apply(x).sin().sum().backward()
"""
NONE = """
class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        return x + bias
    @staticmethod
    def backward(ctx, grad):
        return grad, None  # CAUSE

fc, bias = nn.Linear(3, 4), nn.Parameter(torch.zeros(4))
opt = torch.optim.SGD([*fc.parameters(), bias], 0.1)
for _ in range(3):
    loss = Add.apply(fc(torch.randn(2, 3)), bias.expand(2, 4)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
NONE_FIRST = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale
    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        gs = (grad * x).sum()
        gx = None  # CAUSE
        return gx, gs

x, s = torch.randn(4, requires_grad=True), torch.tensor(2.0, requires_grad=True)
Scale.apply(x * 2, s).exp().sum().backward()
"""
NONE_SOMETIMES = """
class Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, t):
        ctx.t = t
        return a * t + b * (1 - t)
    @staticmethod
    def backward(ctx, grad):
        if ctx.needs_input_grad[0]:
            ga = grad * ctx.t
        return ga, None, None  # CAUSE

net = nn.Linear(3, 3)
y = Mix.apply(net(torch.randn(2, 3)), net(torch.randn(2, 3)).tanh(), 0.3)
y.pow(2).sum().backward()
"""

# Of a table that is large as tables are, the rows of tokens that no batch picks.
UNPICKED = """
class Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, tokens):
        ctx.save_for_backward(tokens)
        ctx.size = table.shape
        return table[tokens]
    @staticmethod
    def backward(ctx, grad):
        tokens, = ctx.saved_tensors
        found = grad.new_empty(ctx.size)  # CAUSE
        found[tokens] = 0
        for token, row in zip(tokens.tolist(), grad):
            found[token].add_(row)
        return found, None

def train():
    table, head = nn.Parameter(torch.randn(20000, 16)), nn.Linear(16, 1)
    opt = torch.optim.SGD([table, *head.parameters()], 0.01)
    for _ in range(3):
        loss = head(Pick.apply(table, torch.randint(0, 20000, (12,)))).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
train()
"""
# Memory of numpy.
UNPICKED_ARRAY = """
import numpy as np
class Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, tokens):
        ctx.save_for_backward(table, tokens)
        return table[tokens]
    @staticmethod
    def backward(ctx, grad):
        table, tokens = ctx.saved_tensors
        rows = np.empty(table.shape, grad.numpy().dtype)  # CAUSE
        for token in set(tokens.tolist()):
            rows[token] = grad[tokens == token].sum(0).numpy()
        return torch.from_numpy(rows), None

table = nn.Parameter(torch.randn(40, 4))
for _ in range(3):
    Pick.apply(table, torch.tensor([1, 5, 5, 7])).sum().backward()
    table.grad = None
"""


CASES: list[tuple[str, str]] = [
    ("wrong-derivative", FACTOR), ("wrong-derivative", TERM), ("wrong-derivative", ONE_INPUT),
    ("uninitialised", UNWRITTEN), ("uninitialised", UNWRITTEN_ROWS), ("uninitialised", UNWRITTEN_LAST),
    ("uninitialised", UNPICKED), ("uninitialised", UNPICKED_ARRAY),
    ("missing-gradient", NONE), ("missing-gradient", NONE_FIRST), ("missing-gradient", NONE_SOMETIMES),
]  # fmt: skip

PROGRAMS = numbered(CASES)


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_of_the_backward_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_the_factor_is_told(runs: dict[str, Run]) -> None:
    found = runs["wrong-derivative 0"].check_first("wrong-derivative")
    assert "0.5 times" in found["message"], found
