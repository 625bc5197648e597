"""Gradients that are zero, vanish, explode or underflow, in programs as users have them, on PyTorch."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run

pytest.importorskip("torch")

DEAD = """
import torch, torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 1)
        nn.init.constant_(self.inner.bias, -30.0)  # CAUSE
    def forward(self, x):
        hidden = torch.relu(self.inner(x))
        return self.outer(hidden)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(5):
    loss = (net(torch.randn(16, 8)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(p.grad.abs().sum().item() == 0 for p in net.inner.parameters()))
"""

# The bias is below 0 too, and is not what makes it dead.
SUNK = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Linear(8, 16)
with torch.no_grad():
    net.weight.copy_(-net.weight.abs() - 1.0)
    net.bias.fill_(-0.1)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(5):
    out = net(torch.rand(16, 8) + 0.5)
    hidden = torch.relu(out)  # CAUSE
    loss = (hidden.sum(1) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

SATURATED = """
import torch, torch.nn as nn
torch.manual_seed(0)
encoder, gate = nn.Linear(8, 8), nn.Linear(8, 4)
optimizer = torch.optim.SGD([*encoder.parameters(), *gate.parameters()], lr=0.1)
def forward(x):
    logits = gate(encoder(x * 1000) * 1000)
    return torch.sigmoid(logits)  # CAUSE
for _ in range(4):
    loss = (forward(torch.randn(16, 8)) - 0.5).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ROUNDED = """
import torch, torch.nn as nn
class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, x):
        return torch.round(self.layer(x) * 8) / 8  # CAUSE
torch.manual_seed(0)
net = Quantised()
net(torch.randn(16, 8)).pow(2).mean().backward()
"""

SIGMOIDS = """
import torch, torch.nn as nn
class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.head = nn.Linear(16, 1)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = torch.sigmoid(x)  # CAUSE
        return self.head(x)
torch.manual_seed(0)
net = Deep(12)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    loss = net(torch.randn(16, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

IN_A_ROW = """
import torch
from torch import nn
def make(depth):
    layers = []
    for _ in range(depth):
        layers.append(nn.Linear(16, 16))
        layers.append(nn.Sigmoid())  # CAUSE
    return nn.Sequential(*layers, nn.Linear(16, 1))
torch.manual_seed(0)
net = make(16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(10):
    loss = net(torch.randn(4, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RECURRENT = """
import torch
class Cell(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.recurrent = torch.nn.Parameter(0.2 * torch.eye(width))
        self.inner = torch.nn.Linear(4, width)
    def forward(self, h, x):
        return torch.tanh(h @ self.recurrent + self.inner(x))  # CAUSE
torch.manual_seed(0)
cell = Cell(8)
optimizer = torch.optim.Adam(cell.parameters())
for _ in range(3):
    h = torch.zeros(4, 8)
    for x in torch.randn(20, 4, 4):
        h = cell(h, x)
    optimizer.zero_grad()
    h.pow(2).mean().backward()
    optimizer.step()
"""

EXPLODING = """
import torch, torch.nn as nn
def block(width):
    layer = nn.Linear(width, width, bias=False)
    nn.init.normal_(layer.weight, std=1.0)
    return layer
torch.manual_seed(0)
blocks = nn.ModuleList(block(64) for _ in range(8))
def run(x):
    for each in blocks:
        x = each(x)  # CAUSE
    return x
for _ in range(3):
    loss = run(torch.randn(4, 64)).mean()
    loss.backward()
    blocks.zero_grad()
"""

LOOP = """
import torch, torch.nn as nn
class Linear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.recurrent = nn.Parameter(torch.randn(width, width))
        self.inner, self.head = nn.Linear(3, width), nn.Linear(width, 1)
    def forward(self, xs):
        h = torch.zeros(xs.shape[1], 16)
        for x in xs:
            h = h @ self.recurrent + self.inner(x)  # CAUSE
        return self.head(h)
torch.manual_seed(0)
net = Linear(16)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-20)
for _ in range(3):
    loss = net(torch.randn(20, 4, 3)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Each block adds what it makes to what it gets, and makes too much.
BLOCKS = """
import torch, torch.nn as nn, torch.nn.functional as F
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        nn.init.normal_(self.conv.weight, std=1.0)
    def forward(self, x):
        return x + F.leaky_relu(self.conv(x))  # CAUSE
torch.manual_seed(0)
body = nn.ModuleList([Block(24) for _ in range(10)])
head = nn.Linear(24, 2)
for _ in range(3):
    x = torch.randn(4, 24, 12)
    for block in body:
        x = block(x)
    loss = F.cross_entropy(head(x.mean(-1)) * 1e-9, torch.tensor([0, 1, 0, 1]))
    loss.backward()
    body.zero_grad()
"""

UNSCALED = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def train(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
    loss = (out.float() * 1e-6 - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # CAUSE
    optimizer.step()
for _ in range(4):
    train(torch.randn(256, 16), 1e-3 * torch.randn(256, 1))
print(net[0].weight.grad.abs().sum().item())
"""

CAST = """
import torch
weight = torch.nn.Parameter(torch.ones(64))
for _ in range(3):
    x = (weight * 2).to(torch.float16).float()  # CAUSE
    (x * 1e-9).sum().backward()
print(weight.grad.abs().sum().item())
"""

SMALL_FACTOR = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, dtype=torch.float16))
    def forward(self, x):
        scaled = self.weight * 2e-8  # CAUSE
        return scaled + x
torch.manual_seed(0)
model = Model()
for _ in range(3):
    model(torch.ones(64, dtype=torch.float16)).sum().backward()
print(model.weight.grad.abs().sum().item())
"""

# What shrinks at every layer of a tower, until no step changes what is below it.
TOWER = """
import torch, torch.nn as nn
class Tower(nn.Module):
    def __init__(self, width, height):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(height)])
        for layer in self.layers:
            nn.init.uniform_(layer.weight, -0.01, 0.01)
        self.read = nn.Linear(width, 2)
    def forward(self, x):
        for layer in self.layers:
            x = torch.sigmoid(layer(x)) - 0.5  # CAUSE
        return self.read(x)
torch.manual_seed(0)
tower = Tower(12, 8)
learner = torch.optim.SGD(tower.parameters(), lr=0.01)
for _ in range(6):
    learner.zero_grad()
    nn.functional.cross_entropy(tower(torch.randn(8, 12)), torch.randint(0, 2, (8,))).backward()
    learner.step()
"""

# The first layers got nothing only until they were begun anew: no step changed a bit by then, and depth is not why.
ANEW = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(12)])
for layer in net:
    nn.init.normal_(layer.weight, std=0.01)
sgd = torch.optim.SGD(net.parameters(), lr=1e-3)  # CAUSE
for turn in range(9):
    if turn == 4:
        for layer in net:
            nn.init.orthogonal_(layer.weight)
    sgd.zero_grad()
    ((net(torch.randn(8, 16)) - 1) ** 2).mean().backward()
    sgd.step()
"""

HEALTHY = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)
    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))
def train(net, batches, loss_of, **options):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
    return float(loss_of(net, batches[-1]))
# Blocks whose last layer begins at zero, a frozen backbone, an embedding, an expert that a batch does not choose.
print(train(nn.Sequential(*[Residual(16) for _ in range(8)], nn.Linear(16, 1)), torch.randn(5, 8, 16),
            lambda net, x: (net(x) - 1).pow(2).mean()))
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.a, self.b = nn.Embedding(50, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.backbone = nn.Linear(8, 8).requires_grad_(False)
    def forward(self, x):
        h = self.backbone(self.words(x)).mean(1)
        return torch.where((x[:, :1] % 2 == 0), torch.relu(self.a(h)), torch.relu(self.b(h)))
print(train(Experts(), torch.randint(0, 50, (5, 8, 3)), lambda net, x: (net(x) - 1).pow(2).mean()))
# Many layers with sane initialisation, and a recurrent net with a loss at each step.
deep = []
for _ in range(10):
    layer = nn.Linear(32, 32)
    nn.init.kaiming_normal_(layer.weight)
    deep += [layer, nn.ReLU()]
print(train(nn.Sequential(*deep, nn.Linear(32, 1)), torch.randn(4, 16, 32), lambda net, x: net(x).pow(2).mean()))
print(train(nn.LSTM(4, 8, num_layers=2), torch.randn(4, 30, 2, 4), lambda net, x: net(x)[0].pow(2).mean()))
# A straight-through estimator; float16 with a scaler; a loss in float16 that is large enough.
line = nn.Linear(4, 4)
def quantised(net, x):
    y = net(x)
    return (y + (y.round() - y).detach() - 2).pow(2).mean()
print(train(line, torch.randn(4, 8, 4), quantised))
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 1))
scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (net(torch.randn(64, 16)).float() - 1).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
"""

CASES = [
    (DEAD, "zero-gradient", "was set to -30"), (SUNK, "zero-gradient", "is negative"),
    (SATURATED, "zero-gradient", "saturated"),
    (ROUNDED, "rounded-gradient", "everywhere"), (SIGMOIDS, "vanishing", "sigmoid"), (RECURRENT, "vanishing", "tanh"),
    (LOOP, "exploding", "mm"), (BLOCKS, "exploding", "conv"),
    (EXPLODING, "exploding", "mm"), (UNSCALED, "half-underflow", "scaler"), (CAST, "half-underflow", "float16"),
    (SMALL_FACTOR, "half-underflow", "mul"),
]  # fmt: skip

PROGRAMS = {str(number): each[0] for number, each in enumerate(CASES)} | {
    "in a row": IN_A_ROW, "tower": TOWER, "anew": ANEW, "healthy": HEALTHY,
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_names_the_line(runs: dict[str, Run], number: int) -> None:
    _, kind, why = CASES[number]
    first = runs[str(number)].check_first(kind)
    assert why in (first["message"] + " ".join(first["evidence"])).lower(), first


@pytest.mark.parametrize("name", ["in a row", "tower"])
def test_what_follows_from_vanishing_gradients_is_told_behind_them(runs: dict[str, Run], name: str) -> None:
    """Steps that change nothing. Where one line runs all layers, the one to change is that which makes them."""
    run = runs[name]
    first = run.check_first("vanishing")
    assert len(run.above_notes()) == 1, str(run)
    told = [(each["kind"], each["victim_of"]) for each in run.every if each["severity"] != "note"]
    assert told == [("vanishing", None), ("lost-update", first["id"])], str(run)


def test_steps_that_change_nothing_are_told_where_depth_is_not_why(runs: dict[str, Run]) -> None:
    """The gradients vanished in the first iterations only."""
    run = runs["anew"]
    assert run.check_first("lost-update")["victim_of"] is None, str(run)
    assert not any(each["kind"] == "vanishing" for each in run.every), str(run)


def test_healthy_programs_get_no_finding(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("frozen-in-optimizer")


def test_what_is_said_to_be_zero_is_zero(runs: dict[str, Run]) -> None:
    """The programs' own word, without adbg: both parameters of the dead layer, and all of the weights in float16."""
    said = {program: runs[str(number)].plain.splitlines()[0] for number, (program, *_) in enumerate(CASES)}
    assert [said[each] for each in (DEAD, UNSCALED, CAST, SMALL_FACTOR)] == ["2", "0.0", "0.0", "0.0"]
