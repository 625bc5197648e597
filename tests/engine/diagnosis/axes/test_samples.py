"""Numbers of each sample that a broadcast lines up with the columns; beside such that are meant for the columns, and
numbers that have the axes that they need."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, only

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
def parameter(count):
    return nn.Parameter(framework.zeros(count))
def sgd(*values):
    return framework.optim.SGD(values, 0.01), "zero_grad"
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
def parameter(count):
    return framework.create_parameter([count], "float32")
def sgd(*values):
    return framework.optimizer.SGD(0.01, parameters=list(values)), "clear_grad"
def conv(a, b):
    return nn.Conv2D(a, b, 3, padding=1)
""",
}
TRAIN = """
net = nn.Sequential(conv(1, 4), nn.Tanh(), conv(4, 1))
table, learnt = framework.linspace(0.1, 0.9, 20), parameter(20)
optimizer, clear = sgd(*net.parameters(), learnt)
columns = integers(20, 8)
for _ in range(10):
    x = noise(8, 1, 8, 8)
    BODY
    loss = loss + 0.01 * learnt.square().sum()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
    print(float(loss))
"""
WRONG = {
    "picked": """level = table[integers(20, x.shape[0])]
    mixed = level.sqrt() * x  # CAUSE
    loss = (net(mixed) - x).square().mean()""",
    "drawn": """b, c, h, w = x.shape
    t = drawn(b)
    keep = 1 - t
    mixed = x * keep  # CAUSE
    loss = (net(mixed) - x).square().mean()""",
    "weights": """weight = table[integers(20, len(x))]
    squares = (net(x) - x).square()
    loss = (weight * squares).mean()  # CAUSE""",
}
RIGHT = {
    "with its axes": """level = table[integers(20, 8)].reshape((-1, 1, 1, 1))
    loss = (net(level.sqrt() * x) - x).square().mean()""",
    "of the columns": "loss = (net(table[columns] * x) - x).square().mean()",
    "bias of positions": """at = integers(20, x.shape[0])
    loss = (net(x) + learnt[at] - x).square().mean()""",
    "a statistic": "loss = (net(x - x.mean((0, 1, 2))) - x).square().mean()",
    "of each sample's sum": """weight = table[integers(20, 8)]
    loss = (weight * (net(x) - x).square().mean((1, 2, 3))).mean()""",
    "all pairs": """weighb, c, h, w = x.shape
    t = drawn(b)
    flat = net(x).reshape((8, 64))
    loss = ((flat @ flat.t()) * weight).mean()""",
}


# Nothing says for what they are drawn.
UNSAID = {
    "a gain of each column": "loss = (net(x * drawn(x.shape[-1])) - x).square().mean()",
    "a number": "loss = (net(x * (0.5 + drawn(8))) - x).square().mean()",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {
        name: HEAD[request.param] + TRAIN.replace("BODY", body) for name, body in {**WRONG, **RIGHT, **UNSAID}.items()
    }
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


@each
@pytest.mark.parametrize("name", UNSAID)
def test_where_nothing_says_of_what_they_are_a_note_asks(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy("wrong-axis")


# A loader puts a weight of each sample beside its image; the second takes a row of gains for all of its columns.
LOADED = """
from torch.utils.data import DataLoader, TensorDataset
net = conv(1, 1)
optimizer, clear = sgd(*net.parameters())
data = TensorDataset(noise(24, 1, 8, 8), drawn(24), drawn(1, 8).expand(24, 8).clone())
for epoch in range(3):
    for x, weight, gains in DataLoader(data, batch_size=8):
        error = (net(x) - x).square().squeeze(1)
        loss = BODY
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
"""


@only("torch", "Paddle's loader puts samples together in NumPy")
def test_a_number_of_each_sample_that_a_loader_puts_together(tmp_path_factory: pytest.TempPathFactory) -> None:
    bodies = {
        "wrong": "(error * weight).mean()  # CAUSE",
        "right": "(error * weight.reshape(-1, 1, 1)).mean()",
        "of the columns": "(error * gains[0]).mean()",
    }
    texts = {name: HEAD["torch"] + LOADED.replace("BODY", body) for name, body in bodies.items()}
    runs = diagnose_each("torch", tmp_path_factory.mktemp("programs"), texts)
    assert "one of each sample" in runs["wrong"].check_first("wrong-axis")["evidence"][0]
    runs["right"].check_healthy()
    runs["of the columns"].check_healthy()
