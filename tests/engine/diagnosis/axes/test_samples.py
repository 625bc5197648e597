"""Numbers of each sample that a broadcast lines up with the columns; beside such that are meant for the columns, and
numbers that have the axes that they need."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
def noise(*shape):
    return framework.randn(*shape)
def drawn(*shape):
    return framework.rand(*shape)
def integers(n, count):
    return framework.randint(0, n, (count,))
def sgd(net):
    return framework.optim.SGD(net.parameters(), 0.01), "zero_grad"
def conv(a, b):
    return nn.Conv2d(a, b, 3, padding=1)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
def noise(*shape):
    return framework.randn(shape)
def drawn(*shape):
    return framework.rand(shape)
def integers(n, count):
    return framework.randint(0, n, [count])
def sgd(net):
    return framework.optimizer.SGD(0.01, parameters=net.parameters()), "clear_grad"
def conv(a, b):
    return nn.Conv2D(a, b, 3, padding=1)
""",
}
TRAIN = """
net = nn.Sequential(conv(1, 4), nn.Tanh(), conv(4, 1))
optimizer, clear = sgd(net)
table = framework.linspace(0.1, 0.9, 20)
columns = integers(20, 8)
for _ in range(10):
    x = noise(8, 1, 8, 8)
    BODY
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
    print(float(loss))
"""
WRONG = {
    "picked": """level = table[integers(20, 8)]
    mixed = level.sqrt() * x  # CAUSE
    loss = (net(mixed) - x).square().mean()""",
    "drawn": """t = drawn(8)
    keep = 1 - t
    mixed = x * keep  # CAUSE
    loss = (net(mixed) - x).square().mean()""",
    "weights": """weight = table[integers(20, 8)]
    squares = (net(x) - x).square()
    loss = (weight * squares).mean()  # CAUSE""",
}
RIGHT = {
    "with its axes": """level = table[integers(20, 8)].reshape((-1, 1, 1, 1))
    loss = (net(level.sqrt() * x) - x).square().mean()""",
    "of the columns": "loss = (net(table[columns] * x) - x).square().mean()",
    "a statistic": "loss = (net(x - x.mean((0, 1, 2))) - x).square().mean()",
    "of each sample's sum": """weight = table[integers(20, 8)]
    loss = (weight * (net(x) - x).square().mean((1, 2, 3))).mean()""",
    "all pairs": """weight = drawn(8)
    flat = net(x).reshape((8, 64))
    loss = ((flat @ flat.t()) * weight).mean()""",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + TRAIN.replace("BODY", body) for name, body in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-samples-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_each_sample_gets_the_numbers_of_all(runs: dict[str, Run], name: str) -> None:
    assert "[8] and [8, 1, 8, 8]" in runs[name].check_first("wrong-axis")["evidence"][1]


@each
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_meant(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
