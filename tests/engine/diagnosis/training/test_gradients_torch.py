"""What becomes of gradients between a backward and a step, on torch: three programs with a bug of each kind."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)
"""

ZERO_GRAD = {
    "no zero_grad": """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()  # CAUSE
    print(loss.item())
""",
    "of one of two optimizers": """
class Trainer:
    def __init__(self):
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.slow = torch.optim.SGD(self.body.parameters(), lr=0.001)
        self.fast = torch.optim.Adam(self.head.parameters(), lr=0.01)

    def update(self):
        self.fast.step()
        self.slow.step()  # CAUSE

    def run(self, steps):
        for _ in range(steps):
            self.fast.zero_grad()
            loss = nn.functional.mse_loss(self.head(torch.relu(self.body(x))), y)
            loss.backward()
            self.update()

Trainer().run(4)
""",
    "cleared only where an argument says so": """
import contextlib

class Player:
    def __init__(self, net):
        self.net, self.optimizer = net, torch.optim.SGD(net.parameters(), lr=0.01)

    @contextlib.contextmanager
    def turn(self, fresh=False):  # CAUSE
        if fresh:
            self.optimizer.zero_grad()
        yield self.net
        self.optimizer.step()

one, two = Player(nn.Linear(6, 1)), Player(nn.Linear(6, 1))
for _ in range(4):
    with one.turn(fresh=True) as net:
        nn.functional.mse_loss(net(x), y).backward()
    with two.turn() as net:
        nn.functional.mse_loss(net(x), y).backward()
""",
    "a closure": """
model = nn.Linear(6, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

def closure():
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss

for _ in range(4):
    optimizer.step(closure)  # CAUSE
""",
    "a method that hands it on to one": """
class Both:
    def __init__(self, *all):
        self.all = all
    def zero_grad(self):
        self.all[0].zero_grad()  # CAUSE
    def step(self):
        for each in self.all:
            each.step()

body, head = nn.Linear(6, 8), nn.Linear(8, 1)
both = Both(torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(head.parameters(), lr=0.01))
for _ in range(4):
    loss = nn.functional.mse_loss(head(nn.functional.relu(body(x))), y)
    both.zero_grad()
    loss.backward()
    both.step()
""",
    "an object that has the methods of one": """
class Both:
    def __init__(self, first, second):
        self.first, self.second = first, second
    def __getattr__(self, name):
        return getattr(self.first, name)
    def step(self):
        self.first.step()
        self.second.step()

body, head = nn.Linear(6, 8), nn.Linear(8, 1)
both = Both(torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(head.parameters(), lr=0.01))
for _ in range(4):
    loss = nn.functional.mse_loss(head(nn.functional.relu(body(x))), y)
    both.zero_grad()  # CAUSE
    loss.backward()
    both.step()
""",
}

HEALTHY = """
class Both:
    def __init__(self, first, second):
        self.first, self.second = first, second
    def __getattr__(self, name):
        return getattr(self.first, name)
    def zero_grad(self):
        self.first.zero_grad()
        self.second.zero_grad()
    def step(self):
        self.first.step()
        self.second.step()

body, head = nn.Linear(6, 8), nn.Linear(8, 1)
both = Both(torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.Adam(head.parameters(), lr=0.01))
for _ in range(4):
    loss = nn.functional.mse_loss(head(nn.functional.relu(body(x))), y)
    both.zero_grad()
    loss.backward()
    both.step()
"""

LOST = {
    "zero_grad behind backward": (
        "cleared-gradients",
        """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(4):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.zero_grad()  # CAUSE
    optimizer.step()
""",
    ),
    "in a helper, to zeros": (
        "cleared-gradients",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def reset(model):
    model.zero_grad(set_to_none=False)  # CAUSE

for batch in x.split(4):
    model(batch).pow(2).mean().backward()
    reset(model)
    optimizer.step()
""",
    ),
    "assigned": (
        "dropped-gradients",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in x.split(4):
    model(batch).pow(2).mean().backward()
    for parameter in model.parameters():
        parameter.grad = None  # CAUSE
    optimizer.step()
""",
    ),
    "step above backward": (
        "step-order",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in x.split(4):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    optimizer.step()  # CAUSE
    loss.backward()
""",
    ),
    "step above backward, in another function": (
        "step-order",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def update():
    optimizer.step()  # CAUSE

for batch in x.split(4):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    update()
    loss.backward()
""",
    ),
}

TWICE = {
    "two lines": """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    print(loss.item())
    loss.backward()  # CAUSE
    optimizer.step()
""",
    "in a method that a subclass extends": """
class Base:
    def fit(self, model, optimizer, loss):
        loss.backward(retain_graph=True)

class Trainer(Base):
    def fit(self, model, optimizer, loss):
        optimizer.zero_grad()
        super().fit(model, optimizer, loss)
        loss.backward()  # CAUSE
        optimizer.step()

model = nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
for batch, target in zip(x.split(4), y.split(4)):
    Trainer().fit(model, optimizer, nn.functional.l1_loss(model(batch), target))
""",
    "tensors without a module": """
w = torch.randn(6, 1, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    loss = ((x @ w - y) ** 2).mean()
    for _ in range(2):
        loss.backward(retain_graph=True)  # CAUSE
    optimizer.step()
    optimizer.zero_grad()
""",
}


UNDIVIDED = """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for number, (batch, target) in enumerate(zip(x.split(2), y.split(2)), 1):
        nn.functional.mse_loss(model(batch), target).backward()  # CAUSE
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

PROGRAMS = (
    ZERO_GRAD
    | TWICE
    | {name: program for name, (_, program) in LOST.items()}
    | {"undivided": UNDIVIDED, "healthy": HEALTHY}
)


@pytest.mark.parametrize("name", ZERO_GRAD)
def test_gradients_that_are_not_cleared(runs: dict[str, Run], name: str) -> None:
    finding = runs[name].check_first("zero-grad")
    assert finding["severity"] == "error" and finding["confidence"] >= 0.9


@pytest.mark.parametrize("name", LOST)
def test_gradients_that_are_gone_at_the_step(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(LOST[name][0])


@pytest.mark.parametrize("name", TWICE)
def test_a_loss_run_backward_twice(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("twice-backward")


def test_losses_that_are_not_divided_are_a_note(runs: dict[str, Run]) -> None:
    finding = runs["undivided"].check_first("undivided")
    assert finding["severity"] == "note" and finding["confidence"] < 0.5


def test_one_object_that_clears_the_gradients_of_both(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
