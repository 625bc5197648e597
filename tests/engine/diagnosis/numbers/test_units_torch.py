"""Layers of which most units are dead or saturated, on PyTorch, and others that look alike."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run

pytest.importorskip("torch")

# Negative biases: of 64 units a few are alive.
BIASES = """
import torch, torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 64), nn.Linear(64, 1)
        nn.init.constant_(self.inner.bias, -2.0)
        nn.init.constant_(self.inner.bias[:4], 0.5)
    def forward(self, x):
        hidden = torch.relu(self.inner(x))  # CAUSE
        return self.outer(hidden)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters())
dead = torch.ones(64, dtype=torch.bool)
for _ in range(3):  # all of them are looked at
    x = torch.randn(32, 8)
    dead &= (net.inner(x.detach()) <= 0).all(0)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(int(dead.sum()))
"""

# The rate throws the units there: alive in the first iterations, dead from then on.
THROWN = """
import torch, torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(1)
first, second = nn.Linear(4, 32), nn.Linear(32, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.3)
def forward(x):
    h = first(x)
    h = F.relu(h)  # CAUSE
    return second(h)
for step in range(33):
    x = torch.rand(16, 4) + 1
    loss = (forward(x) - (0 if step < 3 else -40)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(first.parameters(), 20.0)
    nn.utils.clip_grad_norm_(second.parameters(), 1.0)
    optimizer.step()
"""

CHANNELS = """
import torch, torch.nn as nn
torch.manual_seed(0)
def block(a, b):
    conv = nn.Conv2d(a, b, 3, padding=1)
    with torch.no_grad():
        conv.bias.copy_(torch.where(torch.arange(b) % 8 == 0, 0.1, -6.0))
    return conv
stem, body, head = block(3, 16), block(16, 32), nn.Linear(32, 5)
activation = nn.ReLU(inplace=True)
optimizer = torch.optim.SGD([*stem.parameters(), *body.parameters(), *head.parameters()], lr=0.01)
for _ in range(4):
    h = stem(torch.randn(4, 3, 8, 8)).sigmoid()
    h = activation(body(h))  # CAUSE
    loss = nn.functional.cross_entropy(head(h.mean((2, 3))), torch.tensor([0, 1, 2, 3]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Inputs that are not normalised.
PIXELS = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        h = torch.tanh(self.inner(x))  # CAUSE
        return self.outer(h)
net = Encoder()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(4):
    x = torch.randint(0, 255, (16, 16)).float() * 10
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

GATES = """
import torch, torch.nn as nn
torch.manual_seed(0)
gate, value, out = nn.Linear(12, 24), nn.Linear(12, 24), nn.Linear(24, 1)
nn.init.normal_(gate.weight, std=0.1)
nn.init.constant_(gate.bias, -12.0)
optimizer = torch.optim.SGD([*gate.parameters(), *value.parameters(), *out.parameters()], lr=0.01)
for _ in range(4):
    x = torch.randn(16, 12)
    opened = gate(x).sigmoid()  # CAUSE
    loss = (out(opened * value(x)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

WEIGHTS = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(4, width)
        nn.init.normal_(self.inner.weight, std=500.0)
    def forward(self, x):
        return self.inner(x).tanh()  # CAUSE
cell, head = Cell(16), nn.Linear(16, 2)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
for _ in range(4):
    loss = head(cell(torch.randn(12, 4))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Dead from the start, in a model that is gone as the program ends; the line that runs it does not say what it is.
LOCAL = """
import torch, torch.nn as nn
def train(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        for each in net[::2]:
            each.bias.fill_(-50.0)  # CAUSE
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        loss = (net(torch.randn(16, 6)) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sum(int(each.weight.grad.count_nonzero()) for each in net[:4:2])
print(train(0))
"""

# Leaves that no module and no optimizer has: nobody knows a name of them.
NAMELESS = """
import torch
import torch.nn.functional as F
def main():
    torch.manual_seed(0)
    inner, bias = torch.randn(6, 16, requires_grad=True), torch.full((16,), -50.0, requires_grad=True)
    outer = torch.randn(16, 1, requires_grad=True)
    for _ in range(3):
        hidden = F.relu(torch.randn(16, 6) @ inner + bias)  # CAUSE
        (hidden @ outer - 1).pow(2).mean().backward()
        with torch.no_grad():
            outer -= 0.01 * outer.grad
        outer.grad = None
    print(int(inner.grad.count_nonzero()))
main()
"""

HEALTHY = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
def fit(net, batches, loss_of):
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(net, batch)
        loss.backward()
        optimizer.step()
    print(loss.item())
# A deep network with normalisation and one without, small batches, and one row at a time.
plain = nn.Sequential(*[each for _ in range(5) for each in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 1))
fit(plain, torch.randn(9, 4, 32), lambda net, x: (net(x) - 1).pow(2).mean())
normed = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 16), nn.ReLU6(),
                       nn.Linear(16, 3))
fit(normed, torch.randn(8, 6, 3, 8, 8), lambda net, x: F.cross_entropy(net(x), torch.arange(6) % 3))
single = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
fit(single, torch.randn(40, 1, 8), lambda net, x: net(x).pow(2).mean())
# A hinge loss that is nearly always 0, experts of which most get no row, a masked sequence.
pairs = nn.Linear(6, 12)
def hinge(net, x):
    far = torch.cdist(net(x), net(x))
    return F.relu(0.05 - far + 2 * torch.eye(12)).mean() + net(x).pow(2).mean()
fit(pairs, torch.randn(8, 12, 6) * 9, hinge)
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 8)
    def forward(self, x):
        chosen = torch.zeros(len(x), 4)
        chosen[torch.arange(len(x)), torch.arange(len(x)) % 3] = 1
        return self.down(F.relu(self.up(x)) * chosen.repeat_interleave(16, 1))
fit(Experts(), torch.randn(8, 9, 8), lambda net, x: (net(x) - x).pow(2).mean())
# A classifier that is sure, and gates that are open for some rows only.
sure = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())
with torch.no_grad():
    sure[0].weight.fill_(40.0)
fit(sure, torch.randn(8, 32, 2), lambda net, x: F.binary_cross_entropy(net(x), (x.sum(1, keepdim=True) > 0).float()))
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(8, 16), nn.Linear(8, 16)
    def forward(self, x):
        return (6 * self.gate(x)).sigmoid() * self.value(x).tanh()
fit(Gated(), torch.randn(8, 32, 8), lambda net, x: net(x).pow(2).mean())
"""

# A gate that is saturated for all of the data, beside a way that passes gradients on.
BESIDE = """
import torch, torch.nn as nn
class Beside(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x):
        h = self.inner(x)
        return self.outer(h + torch.sigmoid(200 * (h.abs() + 1)))
torch.manual_seed(0)
net = Beside()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    loss = net(torch.randn(16, 6)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CASES = [
    (BIASES, "dead-units", "every iteration"), (THROWN, "dead-units", "since iteration"),
    (CHANNELS, "dead-units", "convolution"), (PIXELS, "saturated-units", "too large"),
    (GATES, "saturated-units", "derivative"), (WEIGHTS, "saturated-units", "derivative"),
]  # fmt: skip

PROGRAMS = {str(number): each[0] for number, each in enumerate(CASES)} | {
    "local": LOCAL, "nameless": NAMELESS, "beside": BESIDE, "healthy": HEALTHY
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_names_the_layer(runs: dict[str, Run], number: int) -> None:
    _, kind, why = CASES[number]
    first = runs[str(number)].check_first(kind)
    assert why in (first["message"] + " ".join(first["evidence"])).lower(), first


def test_as_many_are_dead_as_the_activations_say(runs: dict[str, Run]) -> None:
    """The program's own count of units that were never above 0, without adbg."""
    said = int(runs["0"].plain.splitlines()[0])
    told = runs["0"].check_first("dead-units")
    assert f"{said} of 64 units" in " ".join(told["evidence"]), told


def test_a_network_that_begins_dead_is_named_by_where_it_was_initialised(runs: dict[str, Run]) -> None:
    """Once, though its units are dead and its parameters get zeros. The program's own word: none of them got another
    gradient."""
    run = runs["local"]
    told = run.check_first("zero-gradient")
    assert "dead" in told["message"] and len(run.above_notes()) == 1, str(run)
    assert run.plain.splitlines()[0] == "0"


def test_a_layer_without_names_is_found_dead(runs: dict[str, Run]) -> None:
    told = runs["nameless"].check_first("dead-units")
    assert "100%" in told["message"] and runs["nameless"].plain.splitlines()[0] == "0", told


def test_layers_that_work(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()


def test_a_parameter_with_another_way_than_a_saturated_gate(runs: dict[str, Run]) -> None:
    runs["beside"].check_healthy()
