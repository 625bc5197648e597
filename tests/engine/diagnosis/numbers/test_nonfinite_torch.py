"""Where NaN and infinities begin, in programs as users have them, on PyTorch. Witness: torch's own anomaly mode."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.diagnosing import line_of
from support.diagnosing_many import Run
from support.dialled import Dialled

pytest.importorskip("torch")

DISTANCE = """
import torch, torch.nn as nn
class Triplet(nn.Module):
    def distance(self, a, b):
        return ((a - b) ** 2).sum(1).sqrt()  # CAUSE
    def forward(self, anchor, same, other):
        return (self.distance(anchor, same) - self.distance(anchor, other) + 1).clamp(min=0).mean()
torch.manual_seed(0)
net, criterion = nn.Linear(4, 3), Triplet()
optimizer = torch.optim.Adam(net.parameters())
for step in range(5):
    x = torch.randn(6, 4)
    same = x.clone() if step == 2 else x + 0.1 * torch.randn(6, 4)
    loss = criterion(net(x), net(same), net(torch.randn(6, 4)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

MASKED = """
import torch
weight = torch.nn.Parameter(torch.ones(4))
def loss_of(x):
    y = x * weight
    logs = torch.log(y)  # CAUSE
    return torch.where(y > 0, logs, torch.zeros_like(y)).sum()
loss_of(torch.tensor([0.0, 1.0, 2.0, 3.0])).backward()
print(weight.grad)
"""

LOG_OF_ZERO = """
import torch, torch.nn as nn
def entropy(logits):
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1).mean()  # CAUSE
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
for step in range(12):
    states = torch.randn(8, 4)
    logits = policy(states) * (500 if step == 9 else 1)
    loss = logits.pow(2).mean() - 0.01 * entropy(logits)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

BATCH = """
import torch, torch.nn as nn
from torch.utils.data import DataLoader, Dataset
class Prices(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, at):
        values = [float(at), 1.0, float("nan") if at == 27 else 2.0]
        return torch.tensor(values), torch.tensor([1.0])  # CAUSE
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
for x, y in DataLoader(Prices(), batch_size=4):
    loss = nn.functional.mse_loss(net(x), y)
    if torch.isnan(loss):
        print("loss is nan, giving up")
        break
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

RATE = """
import torch, torch.nn as nn
def train(net, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=5.0)  # CAUSE
    for _ in range(steps):
        x = torch.randn(16, 3)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
torch.manual_seed(0)
print(train(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1)), 60))
"""

HALF = """
import torch, torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 1)
    def forward(self, x):
        h = self.a(x).abs() * 300
        energy = h * h  # CAUSE
        return self.b(energy.sqrt())
torch.manual_seed(0)
net = Net().half()
loss = net(torch.randn(8, 32).half() * 4).mean()
print(loss)
loss.backward()
"""

# The mask is made far from where it is added.
ADDED = """
import torch, torch.nn as nn, torch.nn.functional as F
def mask_of(lengths, size):
    hidden = torch.arange(size)[None] >= lengths[:, None]
    return torch.zeros(len(lengths), size).masked_fill(hidden, float("-inf"))  # CAUSE
torch.manual_seed(0)
net = nn.Linear(8, 1)
x, bias = torch.randn(2, 3, 8), mask_of(torch.tensor([2, 0]), 3)
weights = net(x).squeeze(-1) + bias
pooled = (F.softmax(weights, dim=-1).unsqueeze(-1) * x).sum(1)
pooled.mean().backward()
"""

# An array that numpy computed in the function that makes a tensor of it.
COLLATED = """
import numpy as np, torch, torch.nn as nn
from torch.utils.data import DataLoader
def standardised(records):
    x = np.stack(records)
    spread = x.std(1, keepdims=True)
    with np.errstate(all="ignore"):
        x = (x - x.mean(1, keepdims=True)) / spread  # CAUSE
    x = np.ascontiguousarray(x).astype(np.float32)
    return torch.from_numpy(x).flatten(1)
rng = np.random.default_rng(0)
signals = [rng.normal(size=(16, 3)) for _ in range(8)]
signals[5][:, 1] = 0.0
torch.manual_seed(0)
net = nn.Linear(48, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x in DataLoader(signals, batch_size=4, collate_fn=standardised):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ATTENTION = """
import torch, torch.nn as nn
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x, padding):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores.masked_fill(padding[:, None, :], float("-inf"))  # CAUSE
        scores = scores / 8**0.5
        return scores.softmax(-1) @ x
torch.manual_seed(0)
net = Attention()
padding = torch.tensor([[False, False, True], [True, True, True]])
net(torch.randn(2, 3, 8), padding).mean().backward()
"""

ADDED_LATER = """
import torch, torch.nn as nn
def bias_of(lengths, most):
    places = torch.arange(most)[None, :]
    bias = torch.zeros(len(lengths), most)
    bias[places >= lengths[:, None]] = -float("inf")  # CAUSE
    return bias
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
    def forward(self, x, bias):
        bias = bias.unsqueeze(-1).expand(-1, -1, 1)
        score = self.score(x) + bias
        score = score * 0.5
        return (score.softmax(1) * x).sum(1)
torch.manual_seed(0)
net = Pool()
net(torch.randn(3, 4, 8), bias_of(torch.tensor([2, 0, 4]), 4)).mean().backward()
"""

FUNCTION = """
import torch
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        n = x.norm()
        ctx.save_for_backward(x, n)
        return n
    @staticmethod
    def backward(ctx, grad):
        x, n = ctx.saved_tensors
        unit = x / n  # CAUSE
        return grad * unit
x = torch.zeros(3, requires_grad=True)
Norm.apply(x * 1).backward()
"""

STD = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Linear(4, 4)
def normalised(h):
    return (h - h.mean(0)) / h.std(0)  # CAUSE
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in torch.randn(33, 4).split(8):
    loss = normalised(net(batch)).pow(3).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

WEIGHTS = """
import torch, torch.nn as nn
class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(width) / 0)  # CAUSE
    def forward(self, x):
        return x * self.scale
net = nn.Sequential(nn.Linear(3, 4), Scale(4))
net(torch.ones(2, 3)).mean().backward()
"""

# A loss that leaves NaN out; what computes its gradients does not.
SUMMED = """
import torch, torch.nn as nn
def rows():
    x = torch.randn(8, 3)
    x[2, 1] = float("nan")  # CAUSE
    return x
torch.manual_seed(0)
net, x = nn.Linear(3, 1), rows()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    loss = net(x).squeeze(1).nansum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# A softmax by hand: a probability is left that is no normal number any more.
TINY = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def nll(logits, y):
    e = logits.exp()
    p = e / e.sum(1, keepdim=True)
    return -p[torch.arange(len(y)), y].log().mean()  # CAUSE
y = torch.tensor([0, 1, 2, 0])
for step in range(3):
    x = torch.randn(4, 8) * (1 if step < 2 else 400)
    loss = nll(net(x.clamp(-60, 60)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Gradients are divided by the number of rows, of which there may be none.
AVERAGED = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def finish(count):
    for p in net.parameters():
        p.grad /= count  # CAUSE
    optimizer.step()
    optimizer.zero_grad()
for step in range(6):
    x = torch.randn(8, 3)
    rows = x[x[:, 0] > (9 if step == 4 else 0)]
    loss = (net(rows) - 1).pow(2).sum()
    loss.backward()
    finish(len(rows))
"""

HEALTHY = """
import torch, torch.nn as nn
torch.manual_seed(0)
# A loss scaler that looks for its scale, from one that is far too large.
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
for _ in range(7):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = net(torch.randn(64, 16)).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
# Masks of -inf, an infinite best loss, infinities and NaN in metrics, a NaN batch that is skipped.
best, table = torch.tensor(float("inf")), torch.full((3, 3), float("nan"))
attention = nn.MultiheadAttention(8, 2, batch_first=True)
optimizer = torch.optim.Adam(attention.parameters())
for step in range(6):
    x = torch.randn(2, 5, 8)
    causal = torch.full((5, 5), float("-inf")).triu(1)
    out, _ = attention(x, x, x, attn_mask=causal)
    scores = (out @ out.transpose(1, 2)).masked_fill(torch.eye(5, dtype=torch.bool), float("-inf"))
    loss = -(scores.softmax(-1) * x.sum(-1, keepdim=True)).mean() + out.pow(2).mean()
    if step == 3:
        loss = loss * float("nan")
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    best = torch.minimum(best, loss.detach())
    with torch.no_grad():
        table[step % 3, 0] = torch.log(torch.zeros(()))
        ratio = (x > 9).sum() / (x > 9).sum()
print(best.item(), torch.nanmean(table[:, 1:]).item())
# A safe sqrt, the gradient penalty of a GAN, and a norm whose gradient at 0 is defined.
critic = nn.Linear(4, 1)
x = torch.randn(8, 4, requires_grad=True)
slope = torch.autograd.grad(critic(x).sum(), x, create_graph=True)[0]
((slope.norm(2, dim=1) - 1) ** 2).mean().backward()
y = torch.zeros(3, requires_grad=True)
safe = torch.where(y > 0, y, torch.ones_like(y)).sqrt()
(torch.where(y > 0, safe, torch.zeros_like(y)).sum() + y.norm()).backward()
print(y.grad.sum().item())
"""


TABLE = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

torch.manual_seed(0)


class Stations(Dataset):
    def __init__(self):
        raw = np.random.default_rng(0).normal(size=(40, 4))
        raw[9, 2] = np.inf
        self.names = ["a", "b"]
        self.table = raw.astype("float32")  # CAUSE

    def __getitem__(self, index):
        return self.table[index, :3], self.table[index, 3:]

    def __len__(self):
        return len(self.table)


class Trainer:
    def __init__(self):
        self.loader = DataLoader(Subset(Stations(), range(40)), batch_size=8)
        self.net = nn.Linear(3, 1)

    def fit(self):
        for x, y in self.loader:
            loss = (self.net(x) - y).square().mean()
            self.net.zero_grad()
            loss.backward()


Trainer().fit()
"""


CASES = [
    (ADDED, "all of it is masked"), (COLLATED, "is computed"), (DISTANCE, "infinite at x = 0"),
    (MASKED, "0 * inf"), (LOG_OF_ZERO, "log of 0"), (BATCH, "data"),
    (TABLE, "Stations.table"),
    (RATE, "diverges"), (HALF, "float16"), (ATTENTION, "masked"), (ADDED_LATER, "come from train.py"),
    (FUNCTION, "its own backward"),
    (STD, "single element"), (WEIGHTS, "0 / 0"), (SUMMED, "NaN among its arguments"), (TINY, "all but underflown"),
    (AVERAGED, "between backward and step"),
]  # fmt: skip

PROGRAMS = {str(number): each[0] for number, each in enumerate(CASES)} | {"healthy": HEALTHY}


@pytest.mark.parametrize("number", range(len(CASES)))
def test_names_the_line(runs: dict[str, Run], number: int) -> None:
    _, why = CASES[number]
    first = runs[str(number)].check_first("nonfinite")
    assert why in (first["message"] + " ".join(first["evidence"])), first
    assert first["confidence"] >= 0.8
    large = [each for each in runs[str(number)].every if each["kind"] == "large-update"]
    assert not large or why == "diverges", "the weights did not grow"


def test_healthy_programs_get_no_finding(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("nonfinite")


def test_anomaly_mode_names_the_same_nodes(runs: dict[str, Run], tmp_path: Path) -> None:
    """torch's own detection stops at the first node that gives NaN: of a gradient that is infinite first, behind it."""
    masked = next(name for name, program in PROGRAMS.items() if program is MASKED)
    node = runs[masked].told[0]["node"]["name"]
    script = tmp_path / "anomaly.py"
    script.write_text("import torch; torch.autograd.set_detect_anomaly(True)\n" + textwrap.dedent(MASKED).lstrip())
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    named = re.search(r"Function '(\w+)' returned nan", plain.stderr)
    assert named is not None and named[1] == node, plain.stderr
    assert f"line {line_of(MASKED) + 1}, in loss_of" in plain.stderr


def test_asked_at_a_stop_it_judges_the_node_at_hand(tmp_path: Path) -> None:
    """Diagnosis begins there: nothing was watched before."""
    with Dialled(tmp_path, MASKED) as run:
        run.peer.begin("nan")
        stop = run.peer.stopped()
        run.peer.request("adbg/diagnose", action="start", only=["nonfinite"])
        body = run.peer.request("adbg/diagnose", action="state")
    first = body["findings"][0]
    assert first["node"]["unique_name"] == stop["node"]["unique_name"]
    assert first["cause"]["text"] == "logs = torch.log(y)  # CAUSE"
    assert "0 * inf" in first["message"]
