"""Training loops on torch as trainers, callbacks and context managers spread them: with one bug each, and right ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run, kind_of

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)
pairs = list(zip(x.split(4), y.split(4)))

def fit(model, optimizer, after=lambda: None, epochs=4):
    for _ in range(epochs):
        for batch, target in pairs:
            optimizer.zero_grad()
            F.mse_loss(model(batch), target).backward()
            optimizer.step()
        after()
"""

# Holds a model, and says that it trains while its part was put in evaluation.
WRAPPED = """
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)

task = Task()
optimizer = torch.optim.SGD(task.parameters(), lr=0.01)
"""

BUGS = {
    "wrong-mode: a flag that is put back": WRAPPED
    + """
class Quiet:
    def __init__(self, part):
        self.part = part

    def __enter__(self):
        self.mode = self.part.training
        self.part.eval()

    def __exit__(self, *_):
        self.part.training = self.mode  # CAUSE

def validate():
    with Quiet(task.net), torch.no_grad():
        print(F.mse_loss(task(x), y).item())

fit(task, optimizer, validate)
""",
    "wrong-mode: a flag of the whole": WRAPPED
    + """
@torch.no_grad()
def validate(model):
    model.eval()
    print(F.mse_loss(model(x), y).item())
    model.training = True  # CAUSE

fit(task, optimizer, lambda: validate(task))
""",
}

HEALTHY = {
    "every flag is put back": WRAPPED
    + """
def validate():
    modes = [(part, part.training) for part in task.modules()]
    task.eval()
    with torch.no_grad():
        print(F.mse_loss(task(x), y).item())
    for part, mode in modes:
        part.training = mode

fit(task, optimizer, validate)
""",
    "statistics that are frozen later on": WRAPPED
    + """
def validate():
    task.net.eval()
    with torch.no_grad():
        print(F.mse_loss(task(x), y).item())
    task.train()
    task.net[1].eval()

fit(task, optimizer, validate)
""",
    "only the statistics stay": WRAPPED
    + """
def validate():
    task.eval()
    with torch.no_grad():
        print(F.mse_loss(task(x), y).item())
    task.training = True
    task.net.training = task.net[3].training = True

fit(task, optimizer, validate)
""",
}

PROGRAMS = BUGS | HEALTHY


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_and_its_line(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
