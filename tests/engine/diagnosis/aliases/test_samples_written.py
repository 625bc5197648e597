"""Data sets whose own tensors are written to as samples are made. Witness: the program prints what is left of them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = framework.optim.SGD(net.parameters(), 0.05)
clear = optimizer.zero_grad
noise = lambda *shape: framework.randn(*shape)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = framework.optimizer.SGD(0.05, parameters=net.parameters())
clear = optimizer.clear_grad
noise = lambda *shape: framework.randn(shape)
""",
}
FIT = """
data = Rows()
before = total(data)
for epoch in range(4):
    for start in range(0, 8, 4):
        batch = framework.stack([data[place] for place in range(start, start + 4)])
        loss = (net(batch) - 1).square().mean()
        loss.backward()
        optimizer.step()
        clear()
print("kept" if total(data) == before else "changed")
"""
BUGGY = {
    "masks in a list": """
def masked(x):
    x[1:3] = 0.0  # CAUSE
    return x
class Rows:
    def __init__(self):
        self.rows = [noise(6) for _ in range(8)]
    def __getitem__(self, place):
        return masked(self.rows[place])
def total(data):
    return sum(float(each.sum()) for each in data.rows)
"""
    + FIT,
    "centred where it lies": """
class Rows:
    def __init__(self):
        self.kept = {f"r{place}": noise(6) + place for place in range(8)}
    def __getitem__(self, place):
        x = self.kept[f"r{place}"]
        x.subtract_(x.mean())  # CAUSE
        return x
def total(data):
    return sum(float(each.sum()) for each in data.kept.values())
"""
    + FIT,
    "noise on a part": """
class Noise:
    def __call__(self, x):
        return x.add_(0.5 * noise(6))  # CAUSE
class Rows:
    def __init__(self):
        self.parts, self.change = tuple(noise(6) for _ in range(8)), Noise()
    def __getitem__(self, place):
        return self.change(self.parts[place])
def total(data):
    return sum(float(each.sum()) for each in data.parts)
"""
    + FIT,
}
HEALTHY = {
    "a copy": BUGGY["masks in a list"].replace("masked(self.rows[place])", "masked(self.rows[place].clone())"),
    "what is filled once": """
class Rows:
    def __init__(self):
        self.rows, self.full = framework.zeros([8, 6]), set()
    def __getitem__(self, place):
        if place not in self.full:
            self.rows[place] = noise(6)
            self.full.add(place)
        return self.rows[place] * 1
def total(data):
    return 0.0
"""
    + FIT.replace("total(data) == before", "before == 0"),
    "each is centred once": """
class Rows:
    def __init__(self):
        self.rows, self.done = [noise(6) for _ in range(8)], set()
    def __getitem__(self, place):
        x = self.rows[place]
        if place not in self.done:
            self.done.add(place)
            x.subtract_(x.mean())
        return x
def total(data):
    return 0.0
"""
    + FIT.replace("total(data) == before", "before == 0"),
    "how often each was used": """
class Rows:
    def __init__(self):
        self.rows, self.uses = noise(8, 6), framework.zeros([8])
    def __getitem__(self, place):
        self.uses[place] += 1
        return self.rows[place] * 1
def total(data):
    return float(data.rows.sum())
"""
    + FIT,
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"samples-written-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_samples_that_are_written_to(runs: dict[str, Run], name: str) -> None:
    assert "changed" in runs[name].plain
    assert runs[name].check_first("silent-overwrite")["severity"] in ("note", "error")  # some are proven


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_samples_that_stay(runs: dict[str, Run], name: str) -> None:
    assert "kept" in runs[name].plain
    runs[name].check_healthy()
