"""A softmax along one axis, of which elements are picked along another; and what looks like it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

START = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(6, 5, 4)
tags = torch.arange(30).view(6, 5) % 3

{how}

for _ in range(3):
    optimizer.zero_grad()
    value = loss(net(x))
    value.backward()
    optimizer.step()
    print(value.item())
"""


def program(how: str) -> str:
    return START.format(how=how)


TOKENS = program("""
def loss(out):
    scores = out.log_softmax(1)  # CAUSE
    picked = (-scores).gather(2, tags.unsqueeze(-1))
    return picked.mean()
""")

BATCH = program("""
class Criterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.normalise = nn.LogSoftmax(dim=0)
    def forward(self, out, y):
        flat = self.normalise(out.flatten(0, 1))  # CAUSE
        return F.nll_loss(flat, y.flatten())
criterion = Criterion()
loss = lambda out: criterion(out, tags)
""")

CHANCES = program("""
def chances(out):
    return F.softmax(out, dim=0)  # CAUSE
def loss(out):
    return -torch.take_along_dim(chances(out).clamp(min=1e-6).log(), tags[..., None], dim=-1).mean()
""")

ALIGNED = program("""
objective = nn.CTCLoss(zero_infinity=True)
def loss(out):
    scores = out.transpose(0, 1)  # time, batch, classes
    scores = scores.log_softmax(dim=1)  # CAUSE
    return objective(scores, torch.ones(6, 2, dtype=torch.long), torch.full((6,), 5), torch.full((6,), 2))
""")

TURNED = program("""
objective = nn.CTCLoss(zero_infinity=True)
class Head(nn.Module):
    def forward(self, out):
        return out.log_softmax(1)  # CAUSE
head = Head()
def loss(out):
    scores = head(out).permute(1, 0, 2)[:, :, None].squeeze(2)
    return objective(scores, torch.tensor([[1, 2]] * 6), torch.full((6,), 5), torch.full((6,), 2))
""")

FOLDED = program("""
def loss(out):
    scores = F.log_softmax(out, dim=1)  # CAUSE
    return F.nll_loss(scores.reshape(-1, 3), tags.reshape(-1))
""")

ALIGNED_WELL = program("""
objective = nn.CTCLoss(zero_infinity=True)
def loss(out):
    scores = out.transpose(0, 1).log_softmax(2)
    return objective(scores, torch.tensor([[1, 2]] * 6), torch.full((6,), 5), torch.full((6,), 2))
""")

MEANT = program("""
def loss(out):
    scores = F.log_softmax(out, dim=-1)
    usual = -scores.gather(-1, tags.unsqueeze(-1)).mean() + F.nll_loss(scores.transpose(1, 2), tags)
    last = torch.full((6, 1, 1), 4).expand(6, 1, 3)
    repeated = torch.tensor([0, 1, 2, 3, 4, 0]).view(6, 1, 1).repeat(1, 1, 3)
    usual = usual + F.nll_loss(out.transpose(1, 2).log_softmax(1).transpose(1, 2).reshape(-1, 3), tags.flatten())
    usual = usual + F.nll_loss(scores.permute(1, 2, 0)[..., None].squeeze(-1), tags.T)
    usual = usual + F.nll_loss(scores[:, 1], tags[:, 1])
    even = torch.zeros(6, 3, 3) + 0 * out.mean()
    usual = usual + F.nll_loss(even.log_softmax(1).transpose(1, 2).flatten(0, 1), tags[:, :3].flatten())
    pairs, own = out[:, 0] @ out[:, 1].T, torch.arange(6)
    usual = usual - F.log_softmax(pairs, dim=0).gather(1, own[:, None]).mean() + F.nll_loss(pairs.log_softmax(0), own)
    slots = F.softmax(out, dim=1)
    slots = slots / slots.sum(2, keepdim=True)
    some = scores.gather(1, last).mean() + scores.gather(1, repeated).mean()
    return usual + some + slots.gather(2, tags[..., None]).mean()
""")


CASES = [("wrong-axis", TOKENS), ("wrong-axis", BATCH), ("wrong-axis", CHANCES), ("wrong-axis", ALIGNED),
         ("wrong-axis", TURNED), ("wrong-axis", FOLDED)]  # fmt: skip
PROGRAMS = numbered(CASES) | {"healthy": MEANT, "aligned": ALIGNED_WELL}


@pytest.mark.parametrize("name", numbered(CASES))
def test_a_softmax_along_another_axis_than_its_classes(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_picks_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
    runs["aligned"].check_healthy()
