"""Gradients that rounding makes zero, and gradients of what is no leaf, on torch; and look-alikes of both."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run, kind_of, numbered

SIGNS = """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Binary(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.sign(), self.bias)  # CAUSE

    torch.manual_seed(0)
    net = nn.Sequential(Binary(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for step in range(5):
        x = torch.randn(16, 6)
        loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

BINS = """
    import torch

    def histogram(values, bins):
        place = torch.floor(values * bins).clamp(0, bins - 1)  # CAUSE
        return torch.stack([(1 - (place - at).abs()).clamp(min=0).mean() for at in range(bins)])

    torch.manual_seed(0)
    gamma = torch.ones((), requires_grad=True)
    image = torch.rand(64)
    optimizer = torch.optim.SGD([gamma], lr=0.1)
    for _ in range(4):
        loss = (histogram(image ** gamma, 8) - 1 / 8).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

# What an optimizer is given has been moved: the optimizer itself refuses it.
MOVED = """
    import torch

    class Prompt:
        def __init__(self, size, scale):
            table = torch.randn(size, requires_grad=True)
            self.table = table.mul(scale)  # CAUSE

        def parameters(self):
            yield self.table

    torch.manual_seed(0)
    prompt = Prompt(8, 0.02)
    optimizer = torch.optim.AdamW(prompt.parameters(), lr=1e-3)
    loss = prompt.table.square().sum()
    loss.backward()
    optimizer.step()
"""

# The reentrant checkpoint runs its region under no_grad: where no input needs a gradient, nothing comes back.
REENTRANT = """
    import torch
    import torch.nn as nn
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

    def block(x):
        return body(x) * 2

    def forward(x):
        h = checkpoint(block, x, use_reentrant=True)  # CAUSE
        return head(h)

    for _ in range(5):
        loss = forward(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

HEALTHY = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)

    class Quantised(nn.Module):
        # rounds to use the value, and passes the gradient past it
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 1)

        def forward(self, x):
            h = self.inner(x)
            h = h + (torch.round(h * 8) / 8 - h).detach()
            return self.outer(h)

    net = Quantised()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(5):
        x = torch.randn(8, 4)
        out = net(x)
        part = out - torch.floor(out.detach())
        right = (out.round() == 1).float().mean()
        loss = (out - 1).square().mean() + 0.1 * part.mean() + (out.sign() * out).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), right.item())
    # .grad of what is no leaf: kept on request, or asked for by autograd.grad; an adversarial input is a leaf.
    w = torch.randn(3, requires_grad=True)
    h = w * 2
    h.retain_grad()
    h.square().sum().backward()
    print(h.grad.norm().item(), w.grad.norm().item())
    x = (torch.randn(4, 4) * 0.1).requires_grad_()
    net(x).sum().backward()
    with torch.no_grad():
        moved = x + 0.1 * x.grad.sign()
    y = net.inner(moved)
    (slope,) = torch.autograd.grad(net.outer(y).sum(), y)
    print(slope.norm().item())
"""


CASES = [
    ("rounded-gradient", SIGNS), ("rounded-gradient", BINS), ("non-leaf-gradient", MOVED), ("no-gradient", REENTRANT),
]  # fmt: skip

PROGRAMS = numbered(CASES) | {"healthy": HEALTHY}


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_rounding_and_gradients_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
