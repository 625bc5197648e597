"""Losses on torch that are computed of something else than was meant, and others that look alike."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run, kind_of, numbered

START = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, {out}))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.randn(6, 4)

{how}

for _ in range(3):
    optimizer.zero_grad()
    value = loss(net(x))
    value.backward()
    optimizer.step()
    print(value.item())
"""


def program(how: str, out: int = 1) -> str:
    return START.format(how=how, out=out)


SQUARED = program("""
y = x.sum(1)

def loss(out):
    error = (out - y) ** 2  # CAUSE
    return error.mean()
""")

CRITERION = program("""
y = x.sum(1)
criterion = nn.MSELoss()

class Objective:
    def __call__(self, out):
        return criterion(y, out)  # CAUSE

loss = Objective()
""")

ABSOLUTE = program("""
y = x.sum(1, keepdim=True)

def loss(out):
    flat = out.squeeze()
    return torch.abs(torch.sub(y, flat)).sum() / len(x)  # CAUSE
""")

# Both that meet are learnt, and the target is neither's.
BIASED = program("""
y = x.sum(1)
bias = nn.Parameter(torch.zeros(6, 1))
optimizer.add_param_group({"params": [bias]})

def loss(out):
    score = out.sum(-1) + bias  # CAUSE
    return (score - y).square().mean()
""")

TWICE = program(
    """
y = torch.tensor([0, 1, 2, 0, 1, 2])

def loss(out):
    chances = torch.softmax(out, dim=-1)  # CAUSE
    return F.cross_entropy(chances, y)
""",
    3,
)

SIGMOID = program("""
y = (x.sum(1, keepdim=True) > 0).float()
criterion = nn.BCEWithLogitsLoss()
net.append(nn.Sigmoid())

def loss(out):
    return criterion(out, y)
""")

NO_LOG = program(
    """
y = torch.tensor([0, 1, 2, 0, 1, 2])
head = nn.Softmax(dim=1)

def loss(out):
    out = head(out)  # CAUSE
    return F.nll_loss(out, y)
""",
    3,
)

RAW = program(
    """
y = torch.tensor([0, 1, 2, 0, 1, 2])

def loss(out):
    return F.nll_loss(out * 3, y)  # CAUSE
""",
    3,
)

HEALTHY = program(
    """
y = x.sum(1)
classes = torch.tensor([0, 1, 2, 0, 1, 2])
centres = nn.Parameter(torch.randn(6))
optimizer.add_param_group({"params": [centres]})
scale = torch.ones(6)

def loss(out):
    column, row = out[:, :1], out[:, 0]
    pairs = (column - row).abs().mean()
    ranks = (out[:, 1:2] - out[:, 1:2].T).relu().mean()
    kernel = torch.exp(-(column - centres) ** 2) @ y
    weighted = (out * scale[:, None]).mean()
    first = ((column - y[:, None]) ** 2).mean() + F.mse_loss(row, y) + kernel.mean()
    chances = torch.softmax(out.detach(), dim=1)
    right = (chances.argmax(1) == classes).float().mean().item()
    soft = F.cross_entropy(out, chances) + F.cross_entropy(out, classes)
    far = F.kl_div(F.log_softmax(out / 2, dim=1), torch.softmax(out.detach(), dim=1), reduction="batchmean")
    gate = torch.sigmoid(column)
    other = F.binary_cross_entropy(gate, (y[:, None] > 0).float())
    again = F.binary_cross_entropy_with_logits(row * gate.squeeze(1), (y > 0).float())
    attended = torch.softmax(out @ out.T, dim=1) @ out
    last = F.nll_loss(F.log_softmax(attended, 1), classes) + F.cross_entropy(attended, classes)
    pairwise = out[:, 2:] + out[:, 1]
    shifted = (pairwise - pairwise.detach().amax(1, keepdim=True)).exp()
    pairs = pairs + (shifted / shifted.sum(1, keepdim=True) * y).sum(1).mean()
    exact = out.double().sum().float() + F.gaussian_nll_loss(row, y, scale)
    print(right)
    return pairs + ranks + weighted + first + soft + far + other + again + last + exact
""",
    3,
)

AXIS = program(
    """
def loss(out):
    square = out[:4]
    centred = square - square.mean(dim=0)
    shares = square / square.sum(dim=1, keepdim=True)
    spread = (centred / centred.std(dim=0)).mean()
    total = square.abs().sum(1)  # CAUSE
    return (square / total).square().mean() + 0 * shares.sum() + 0 * spread
""",
    4,
)

# numpy's default.
DOUBLE = """
import numpy as np
import torch

weight = torch.nn.Parameter(torch.ones(3))
data = torch.from_numpy(np.arange(3.0))
for _ in range(3):
    loss = (weight * data).sum()  # CAUSE
    loss.backward()
    weight.grad = None
"""

CASES = [
    ("loss-broadcast", SQUARED), ("loss-broadcast", CRITERION), ("loss-broadcast", ABSOLUTE),
    ("loss-broadcast", BIASED),
    ("loss-input", TWICE), ("loss-input", SIGMOID), ("loss-input", NO_LOG), ("loss-input", RAW),
]  # fmt: skip
NOTES = [("wrong-axis", AXIS), ("promoted", DOUBLE)]
PROGRAMS = numbered(CASES) | numbered(NOTES) | {"healthy": HEALTHY}


@pytest.mark.parametrize("name", numbered(CASES))
def test_a_loss_of_something_else_than_was_meant(runs: dict[str, Run], name: str) -> None:
    certain = kind_of(name) == "loss-broadcast" and PROGRAMS[name] is not BIASED
    assert runs[name].check_first(kind_of(name))["severity"] == ("error" if certain else "warning")


@pytest.mark.parametrize("name", numbered(NOTES))
def test_a_line_that_may_be_meant_is_noted(runs: dict[str, Run], name: str) -> None:
    severity = "warning" if kind_of(name) == "wrong-axis" else "note"  # of a matrix that is not symmetric
    assert runs[name].check_first(kind_of(name))["severity"] == severity


def test_losses_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
