"""Losses on Paddle that are computed of something else than was meant, and others that look alike."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run, kind_of, numbered

START = """
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

paddle.seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, {out}))
optimizer = paddle.optimizer.SGD(0.05, parameters=net.parameters())
x = paddle.randn([6, 4])

{how}

for _ in range(3):
    optimizer.clear_grad()
    value = loss(net(x))
    value.backward()
    optimizer.step()
    print(value.item())
"""


def program(how: str, out: int = 1) -> str:
    return START.format(how=how, out=out)


SQUARED = program("""
y = x.sum(1)

def loss(out):
    error = (out - y) ** 2  # CAUSE
    return error.mean()
""")

CRITERION = program("""
y = x.sum(1)
criterion = nn.MSELoss()

class Objective:
    def __call__(self, out):
        return criterion(out, y)  # CAUSE

loss = Objective()
""")

ABSOLUTE = program("""
y = x.sum(1, keepdim=True)

def loss(out):
    flat = out.squeeze()
    return paddle.abs(paddle.subtract(y, flat)).sum() / len(x)  # CAUSE
""")

# Both that meet are learnt, and the target is neither's.
BIASED = program("""
y = x.sum(1)
bias = paddle.create_parameter([6, 1], "float32")

def loss(out):
    score = out.sum(-1) + bias  # CAUSE
    return (score - y).square().mean()
""")

TWICE = program(
    """
y = paddle.to_tensor([0, 1, 2, 0, 1, 2])

def loss(out):
    chances = F.softmax(out, axis=-1)  # CAUSE
    return F.cross_entropy(chances, y)
""",
    3,
)

SIGMOID = program("""
y = (x.sum(1, keepdim=True) > 0).astype("float32")
criterion = nn.BCEWithLogitsLoss()
gate = nn.Sigmoid()

def loss(out):
    out = gate(out)  # CAUSE
    return criterion(out, y)
""")

NO_LOG = program(
    """
y = paddle.to_tensor([0, 1, 2, 0, 1, 2])

def loss(out):
    out = F.softmax(out, axis=1)  # CAUSE
    return F.nll_loss(out, y)
""",
    3,
)

HEALTHY = program(
    """
y = x.sum(1)
classes = paddle.to_tensor([0, 1, 2, 0, 1, 2])
centres = paddle.create_parameter([6], "float32")

def loss(out):
    column, row = out[:, :1], out[:, 0]
    ranks = F.relu(out[:, 1:2] - out[:, 1:2].T).mean()
    kernel = paddle.exp(-(column - centres) ** 2) @ y
    first = ((column - y.unsqueeze(1)) ** 2).mean() + F.mse_loss(row, y) + kernel.mean()
    chances = F.softmax(out.detach(), axis=1)
    right = (chances.argmax(1) == classes).astype("float32").mean().item()
    soft = F.cross_entropy(out, chances, soft_label=True) + F.cross_entropy(out, classes)
    ready = F.cross_entropy(F.softmax(out, axis=1), classes, use_softmax=False)
    far = F.kl_div(F.log_softmax(out / 2, axis=1), F.softmax(out.detach(), axis=1), reduction="batchmean")
    gate = F.sigmoid(column)
    other = F.binary_cross_entropy(gate, (y.unsqueeze(1) > 0).astype("float32"))
    attended = F.softmax(out @ out.T, axis=1) @ out
    last = F.nll_loss(F.log_softmax(attended, 1), classes) + F.cross_entropy(attended, classes)
    pairwise = out[:, 2:] + out[:, 1]
    shifted = (pairwise - pairwise.detach().max(1, keepdim=True)).exp()
    ranks = ranks + (shifted / shifted.sum(1, keepdim=True) * y).sum(1).mean()
    print(right)
    return ranks + first + soft + ready + far + other + last
""",
    3,
)

AXIS = program(
    """
def loss(out):
    square = out[:4]
    centred = square - square.mean(axis=0)
    shares = square / square.sum(axis=1, keepdim=True)
    spread = (centred / centred.std(axis=0)).mean()
    total = square.abs().sum(1)  # CAUSE
    return (square / total).square().mean() + 0 * shares.sum() + 0 * spread
""",
    4,
)

CASES = [
    ("loss-broadcast", SQUARED), ("loss-broadcast", CRITERION), ("loss-broadcast", ABSOLUTE),
    ("loss-broadcast", BIASED),
    ("loss-input", TWICE), ("loss-input", SIGMOID), ("loss-input", NO_LOG),
]  # fmt: skip
NOTES = [("wrong-axis", AXIS)]
PROGRAMS = numbered(CASES) | numbered(NOTES) | {"healthy": HEALTHY}


@pytest.mark.parametrize("name", numbered(CASES))
def test_a_loss_of_something_else_than_was_meant(runs: dict[str, Run], name: str) -> None:
    certain = kind_of(name) == "loss-broadcast" and PROGRAMS[name] is not BIASED
    assert runs[name].check_first(kind_of(name))["severity"] == ("error" if certain else "warning")


@pytest.mark.parametrize("name", numbered(NOTES))
def test_a_line_that_may_be_meant_is_noted(runs: dict[str, Run], name: str) -> None:
    severity = "warning" if kind_of(name) == "wrong-axis" else "note"  # of a matrix that is not symmetric
    assert runs[name].check_first(kind_of(name))["severity"] == severity


def test_losses_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
