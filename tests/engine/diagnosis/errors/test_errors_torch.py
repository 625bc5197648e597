"""Exceptions of operators and of backwards: the line to change is named, not the one where it shows."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F, numpy as np
torch.manual_seed(3)
"""
LAYER = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(100, 10),  # CAUSE
            nn.ReLU(),
        )
    def forward(self, x):
        return self.head(self.conv(x))

def train(net):
    for _ in range(2):
        F.cross_entropy(net(torch.randn(4, 1, 8, 8)), torch.zeros(4).long()).backward()
train(Net())
"""
DTYPE = """
def batches():
    data = np.random.rand(8, 3)
    return torch.from_numpy(data), torch.zeros(8)  # CAUSE

def train(net, x, y):
    return F.mse_loss(net(x), y)

x, y = batches()
train(nn.Linear(3, 1), x, y).backward()
"""
FOLDED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(72, 5)
    def forward(self, x):
        x = self.conv(x).relu()
        x = x.view(-1, 72)  # CAUSE
        return self.fc(x)

def loss_of(net, x, y):
    out = net(x)
    return F.cross_entropy(out, y)
loss_of(Net(), torch.randn(6, 3, 8, 8), torch.zeros(6, dtype=torch.long)).backward()
"""
FOLDED_OPERATOR = """
def attend(q, k):
    k = k.permute(0, 1, 2)  # CAUSE
    return (q @ k).softmax(-1)
w = nn.Parameter(torch.randn(2, 5, 4))
attend(w * 1.0, w * 2.0).sum().backward()
"""
TARGETS = """
net = nn.Linear(3, 4)
target = torch.tensor([0.0, 1.0, 2.0])  # CAUSE
out = net(torch.randn(3, 3))
loss = F.nll_loss(out.log_softmax(1), target)
loss.backward()
"""
NOT_SCALAR = """
net = nn.Linear(3, 4)
loss = (net(torch.randn(2, 3)) - 1).pow(2)  # CAUSE
loss.backward()
"""
# Weights that are written to while autograd records.
LEAF = """
def init(w):
    for i in range(3):
        w[i] = float(i)  # CAUSE
w = torch.zeros(3, requires_grad=True)
init(w)
"""
STEP = """
net = nn.Linear(3, 1)
for _ in range(2):
    net(torch.ones(4, 3)).pow(2).mean().backward()
    for p in net.parameters():
        p -= 0.1 * p.grad  # CAUSE
"""
# Another device; of those that are here, the one without data.
DEVICE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, x):
        x = x.to("meta")  # CAUSE
        return self.fc(x)
Net()(torch.ones(3, 4)).sum().backward()
"""
OWN = """
class Act(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad @ x  # CAUSE
def run():
    w = nn.Parameter(torch.randn(4, 3))
    loss = Act.apply(w * 2).sum()
    loss.backward()
run()
"""
HOOK = """
net = nn.Linear(3, 4)
def centre(grad):
    mean = grad.mean(2, keepdim=True)  # CAUSE
    return grad - mean
net.weight.register_hook(centre)
net(torch.randn(2, 3)).sum().backward()
"""
INDEX = """
class Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, place):
        ctx.place, ctx.shape = place, x.shape
        return x[place]
    @staticmethod
    def backward(ctx, grad):
        out = torch.zeros(ctx.shape)
        out[ctx.missing] = grad  # CAUSE
        return out, None
Pick.apply(torch.randn(4, requires_grad=True), 2).backward()
"""
SHAPE = """
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = x.t() @ g  # CAUSE
        return g @ w, gw
w = nn.Parameter(torch.randn(4, 3))
Linear.apply(torch.randn(5, 3), w).sum().backward()
"""
COUNT = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x * by
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.by  # CAUSE
net = nn.Linear(2, 2)
def loss_of(x):
    return Scale.apply(net(x), 3.0).sum()
loss_of(torch.ones(1, 2)).backward()
"""
TYPE = """
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.norm()
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return float(grad)  # CAUSE
Norm.apply(torch.randn(3, requires_grad=True)).backward()
"""
SPOILT = """
net = nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def chances(x):
    scale = (x - 1.0).sqrt()  # CAUSE
    return (net(x) * scale.mean()).softmax(-1)
for step in range(3):
    x = torch.full((2, 3), 3.0 - step * 1.5)
    given = chances(x).detach()
    picked = torch.multinomial(given, 1)
    loss = -chances(x).gather(1, picked).log().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
INLINE = SPOILT.replace("    given = chances(x).detach()\n", "").replace("(given,", "(chances(x).detach(),")
STEPPED = """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)
    def forward(self, x):
        return torch.distributions.Categorical(logits=self.body(x))
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), 0.01)
for part in torch.randn(7, 3).split(3):
    picked = policy(part)
    reward = part.sum(1)
    weight = (reward - reward.mean()) / reward.std()  # CAUSE
    loss = -(picked.log_prob(picked.sample()) * weight).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
policy(torch.randn(5, 3))
"""
APART = """
net = nn.Linear(3, 2)  # CAUSE
mask = torch.full((2, 2), -float("inf")).triu(1)
rows = net(torch.randn(2, 3)) + mask
net(rows / rows)
"""


CASES: list[tuple[str, str]] = [
    ("operator-error", LAYER), ("operator-error", DTYPE), ("operator-error", FOLDED),
    ("operator-error", FOLDED_OPERATOR), ("operator-error", TARGETS), ("operator-error", NOT_SCALAR),
    ("operator-error", LEAF), ("operator-error", STEP), ("operator-error", DEVICE),
    ("backward-error", OWN), ("backward-error", HOOK), ("backward-error", INDEX),
    ("function-contract", SHAPE), ("function-contract", COUNT), ("function-contract", TYPE),
    ("nonfinite", SPOILT), ("nonfinite", STEPPED), ("nonfinite", INLINE), ("operator-error", APART),
]  # fmt: skip

PROGRAMS = numbered(CASES)


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_to_change_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_an_exception_that_nan_brought_about_stands_under_where_they_began(runs: dict[str, Run]) -> None:
    for run in (runs["nonfinite 15"], runs["nonfinite 16"]):
        began = next(each for each in run.every if each["kind"] == "nonfinite")
        raised = next(each for each in run.every if each["kind"] == "operator-error")
        assert raised["victim_of"] == began["id"], str(run)
        assert [each["kind"] for each in run.above_notes()] == ["nonfinite"], str(run)
