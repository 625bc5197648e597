"""What a detector has to leave alone: a program for each condition without which there would be a false alarm.

Detectors know no framework, so torch is enough."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run

HEAD = """
import collections
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)
"""
PROGRAMS = {
    # "promoted": both carry gradients, or none is wanted.
    "float64 that is trained, and in a metric": """
weight, scale = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))
table = torch.linspace(0, 1, 3, dtype=torch.float64)
optimizer = torch.optim.SGD([weight, scale], lr=0.1)
for _ in range(3):
    with torch.no_grad():
        print((weight * table).sum().item())
    optimizer.zero_grad()
    (weight * scale).sum().backward()
    optimizer.step()
""",
    # "undivided": it is. "twice-backward": the second loss may lie where the first lay, and gives the same gradients.
    "the same batch twice, each divided": """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    for _ in range(2):
        loss = F.mse_loss(model(x), y) / 2
        loss.backward()
        del loss
    optimizer.step()
""",
    # "undivided": sums need no division.
    "sums over parts of a batch": """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    optimizer.zero_grad()
    for part, target in zip(x.split(8), y.split(8)):
        (model(part) - target).square().sum().backward()
    optimizer.step()
""",
    # "lost-update": once is no mistake.
    "a step that is taken back once": """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    if step == 2:
        model.load_state_dict(kept)
""",
    # "wrong-mode": train() is called for it.
    "dropout that is sampled on purpose": """
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def spread():
    model.train()
    with torch.no_grad():
        return torch.stack([model(x) for _ in range(3)]).std(0).mean().item()
for epoch in range(3):
    model.train()
    for part, target in zip(x.split(4), y.split(4)):
        optimizer.zero_grad()
        F.mse_loss(model(part), target).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(F.mse_loss(model(x), y).item())
    print(spread())
""",
    # "half-underflow": what is multiplied by 0 is 0 in any type.
    "a factor of float16 that is still 0": """
weight, gate = nn.Parameter(torch.ones(64)), torch.zeros(64, dtype=torch.float16)
for _ in range(3):
    (weight.half() * gate + 1e-3).float().square().mean().backward()
    weight.grad = None
""",
    # "vanishing": one layer is no depth.
    "one layer that is scaled down": """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(6)])
        for each in self.layers:
            nn.init.eye_(each.weight).data.mul_(0.33)
        self.layers[3].weight.data.mul_(1e-7)
    def forward(self, h):
        for each in self.layers:
            h = each(h)
        return h
model = Deep()
for _ in range(3):
    (1e3 * model(torch.ones(4, 8)).sum()).backward()
    model.zero_grad()
""",
    # "wrong-mode": its weights are frozen, too.
    "batch norm that is frozen": """
body, head = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1)
model = nn.Sequential(body, head)
body.requires_grad_(False)
model.eval()
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for _ in range(6):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    # "hooks-pile-up": two are no pile.
    "a hook for each of two uses": """
weight = nn.Parameter(torch.ones(6))
seen = []
for step in range(6):
    if step < 2:
        weight.register_hook(lambda gradient: seen.append(gradient.norm().item()))
    (x @ weight).square().mean().backward()
    weight.grad = None
print(len(seen))
""",
    # "wrong-derivative": a function that prints is not run again.
    "a function that says what it does": """
class Loud(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        print("forward of", tuple(value.shape))
        return value * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
weight = nn.Parameter(torch.ones(6))
for _ in range(2):
    Loud.apply(x @ weight).square().mean().backward()
    weight.grad = None
""",
    # "optimizer-remade": within its one step it has a state.
    "an LBFGS for each stage": """
model = nn.Linear(6, 1)
for _ in range(6):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    # "dead-units": of a few units all have to be dead.
    "three of four units that are off": """
first, last = nn.Linear(6, 4), nn.Linear(4, 1)
first.bias.data.copy_(torch.tensor([-30.0, -30.0, -30.0, 1.0]))
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.01)
for _ in range(9):
    optimizer.zero_grad()
    F.mse_loss(last(torch.relu(first(x))), y).backward()
    optimizer.step()
""",
    # "schedule-unused": it might have stepped behind the exception.
    "an exception in the first epoch": """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for step in range(20):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    if step == 14:
        raise ValueError("no more data")
scheduler.step()
""",
    # "graph-kept": it is bounded.
    "a window of losses": """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
recent = collections.deque(maxlen=20)
for _ in range(10):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recent.append(loss)
print(sum(each.item() for each in recent))
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_found(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
