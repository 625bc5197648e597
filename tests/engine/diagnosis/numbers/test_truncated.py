"""Targets of a regression that became integers, all of them one number. Witness: the program prints what is left."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
import torch.nn.functional as F
framework = torch
torch.manual_seed(0)
uniform = torch.rand
def sgd(parameters):
    return torch.optim.SGD(list(parameters), lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
def whole(values):
    return torch.tensor(values, dtype=torch.long)
def cut(value):
    return value.long()
def real(value):
    return value.float()
""",
    "paddle": """
import paddle
from paddle import nn
import paddle.nn.functional as F
framework = paddle
paddle.seed(0)
uniform = lambda *shape: paddle.rand(shape)
def sgd(parameters):
    return paddle.optimizer.SGD(0.01, parameters=list(parameters))
def clear(optimizer):
    optimizer.clear_grad()
def whole(values):
    return paddle.to_tensor(values).astype("int64")
def cut(value):
    return value.astype("int64")
def real(value):
    return value.astype("float32")
""",
}

LOOP = """
net = nn.Linear(4, 2)
optimizer = sgd(net.parameters())
METHOD
for _ in range(4):
    clear(optimizer)
    loss = loss_of(net(uniform(12, 4)))
    loss.backward()
    optimizer.step()
"""


def _program(method: str) -> str:
    return LOOP.replace("METHOD", method)


# The line of the cast is the helper's, as it is in a program that has one.
BUGGY = {
    "of a list": _program("""
def collate(rows):
    return whole(rows)
def loss_of(out):
    boxes = collate([[0.25 * (i % 3), 0.5] for i in range(12)])
    print("left", sorted(set(boxes.reshape([-1]).tolist())))
    return F.smooth_l1_loss(out, real(boxes))
"""),
    "of a tensor": _program("""
def loss_of(out):
    shares = cut(uniform(12, 2) * 0.9)
    print("left", sorted(set(shares.reshape([-1]).tolist())))
    return ((out - real(shares)) ** 2).mean()
"""),
    "reshaped": _program("""
def loss_of(out):
    shares = cut(uniform(24) * -0.9).reshape([12, 2])
    print("left", sorted(set(shares.reshape([-1]).tolist())))
    return F.mse_loss(out, real(shares))
"""),
}
# Written into a tensor that was made like one of whole numbers.
WRITTEN = {
    "returns": _program("""
def returns_of(rewards):
    found = framework.zeros_like(rewards)
    running = framework.zeros([2])
    for t in reversed(range(12)):
        running = real(rewards[t]) + 0.9 * running
        found[t] = running  # CAUSE
    return found
def loss_of(out):
    values = returns_of(cut(uniform(12, 2) * 2))
    print("fractions", float((real(values) - framework.floor(real(values))).abs().sum()))
    return -(out * (real(values) - real(values).mean())).mean()
"""),
    "a buffer": _program("""
class Buffer:
    def __init__(self):
        self.rows = whole([[0, 0]] * 12)
    def fill(self):
        for place in range(12):
            self.rows[place] = uniform(2) * 3  # CAUSE
        return self.rows
buffer = Buffer()
def loss_of(out):
    rows = real(buffer.fill())
    print("fractions", float((rows - framework.floor(rows)).abs().sum()))
    return F.mse_loss(out, rows)
"""),
    "a type of another": _program("""
def loss_of(out):
    table = whole([[1, 2]] * 12)
    table[:, 1] = (uniform(12) * 4 - 2).to(table.dtype)  # CAUSE
    print("fractions", float((real(table) - framework.floor(real(table))).abs().sum()))
    return ((out - real(table)) ** 2).mean()
"""),
    "filled": _program("""
def loss_of(out):
    classes = whole([0, 1] * 6)
    weights = framework.full_like(classes, 0.4)  # CAUSE
    weights = framework.where(classes == 1, framework.full_like(classes, 1.0), weights)
    print("fractions", float((real(weights) - 0.4).abs().min()) > 0.3 and 0.0)
    return (out.square().mean(1) * real(weights)).mean()
"""),
    "columns": _program("""
def loss_of(out):
    table = whole([[1, 2]] * 12)
    table[:, 1] = uniform(12) * 4 - 2  # CAUSE
    print("fractions", float((real(table) - framework.floor(real(table))).abs().sum()))
    return ((out - real(table)) ** 2).mean()
"""),
}
HEALTHY = {
    "whole numbers of a floating type are written": _program("""
def loss_of(out):
    table = whole([[1, 2]] * 12)
    table[:, 1] = framework.floor(uniform(12) * 4)
    return F.mse_loss(out, real(table))
"""),
    "a table is read by it": _program("""
steps = framework.linspace(0.1, 1, 8)
def loss_of(out):
    at = whole([0] * 12)
    at[:] = uniform(12) * 8
    return (steps[at].unsqueeze(1) * (out - uniform(12, 2)) ** 2).mean()
"""),
    "what is written is an index": _program("""
places = nn.Embedding(4, 2)
def loss_of(out):
    table = whole([0] * 12)
    table[:] = uniform(12) * 4
    return F.mse_loss(out, places(table).detach())
"""),
    "integers by name": _program("""
def loss_of(out):
    table = whole([[1, 2]] * 12)
    table[:, 1] = cut(uniform(12) * 4 - 2)
    return ((out - real(table)) ** 2).mean()
"""),
    "filled with whole numbers": _program("""
def loss_of(out):
    classes = whole([0, 1] * 6)
    return (out.square().mean(1) * real(framework.full_like(classes, 2.0))).mean()
"""),
    "a grid": _program("""
def loss_of(out):
    return F.mse_loss(out, real(cut(uniform(12, 2) * 5)))
"""),
    "classes": _program("""
def loss_of(out):
    return F.cross_entropy(out, cut(uniform(12) * 2))
"""),
    "whole before": _program("""
def loss_of(out):
    return F.mse_loss(out, real(whole([[0, 0]] * 12)))
"""),
    "all of them are rounded away": _program("""
def loss_of(out):
    step = cut(uniform(12, 2) * 0.9)
    print(int(step.sum()))
    return F.mse_loss(out, uniform(12, 2))
"""),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    marks = {"of a list": "dtype=", "of a tensor": "value.long()", "reshaped": "value.long()"}
    texts = {name: HEAD[request.param] + text for name, text in (BUGGY | WRITTEN | HEALTHY).items()}
    for name, mark in marks.items():
        if request.param == "paddle":
            mark = '(values).astype("int64")' if name == "of a list" else 'value.astype("int64")'
        lines = texts[name].splitlines()
        at = next(place for place, line in enumerate(lines) if mark in line)
        lines[at] += "  # CAUSE"
        texts[name] = "\n".join(lines)
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-truncated-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_targets_of_which_nothing_is_left(runs: dict[str, Run], name: str) -> None:
    assert "left [0]" in runs[name].plain
    assert runs[name].check_first("loss-input")["severity"] == "error"


@each
@pytest.mark.parametrize("name", WRITTEN)
def test_fractions_that_are_written_into_integers(runs: dict[str, Run], name: str) -> None:
    assert "fractions 0.0" in runs[name].plain
    assert runs[name].check_first("loss-input")["severity"] == "warning"


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_integers_that_are_meant(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
