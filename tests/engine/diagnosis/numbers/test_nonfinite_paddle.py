"""Where NaN and infinities begin, in programs as users have them, on Paddle. The witness is FLAGS_check_nan_inf."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.diagnosing_many import Run

pytest.importorskip("paddle")

DISTANCE = """
import paddle
import paddle.nn as nn
class Triplet(nn.Layer):
    def distance(self, a, b):
        return ((a - b) ** 2).sum(1).sqrt()  # CAUSE
    def forward(self, anchor, same, other):
        return (self.distance(anchor, same) - self.distance(anchor, other) + 1).clip(min=0).mean()
paddle.seed(0)
net, criterion = nn.Linear(4, 3), Triplet()
optimizer = paddle.optimizer.Adam(parameters=net.parameters())
for step in range(5):
    x = paddle.randn([6, 4])
    same = x.clone() if step == 2 else x + 0.1 * paddle.randn([6, 4])
    loss = criterion(net(x), net(same), net(paddle.randn([6, 4])))
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

MASKED = """
import paddle
weight = paddle.create_parameter([4], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
def loss_of(x):
    y = x * weight
    logs = paddle.log(y)  # CAUSE
    return paddle.where(y > 0, logs, paddle.zeros_like(y)).sum()
loss_of(paddle.to_tensor([0.0, 1.0, 2.0, 3.0])).backward()
print(weight.grad)
"""

LOG_OF_ZERO = """
import paddle
import paddle.nn as nn
def entropy(logits):
    p = nn.functional.relu(logits) / (nn.functional.relu(logits).sum(-1, keepdim=True) + 1)
    return -(p * p.log()).sum(-1).mean()  # CAUSE
paddle.seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = paddle.optimizer.SGD(0.01, parameters=policy.parameters())
for step in range(12):
    states = paddle.randn([8, 4])
    logits = policy(states).exp() * (0 if step == 9 else 1)
    loss = logits.pow(2).mean() - 0.01 * entropy(logits)
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

BATCH = """
import numpy as np
import paddle
import paddle.nn as nn
class Prices(paddle.io.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, at):
        values = np.array([at, 1.0, np.nan if at == 27 else 2.0], dtype="float32")
        return paddle.to_tensor(values), np.ones([1], dtype="float32")
paddle.seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = paddle.optimizer.SGD(1e-4, parameters=net.parameters())
rows = Prices()
for start in range(0, 40, 4):
    x = paddle.stack([rows[at][0] for at in range(start, start + 4)])  # CAUSE
    loss = nn.functional.mse_loss(net(x), paddle.ones([4, 1]))
    if paddle.isnan(loss):
        print("loss is nan, giving up")
        break
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

RATE = """
import paddle
import paddle.nn as nn
def train(net, steps):
    optimizer = paddle.optimizer.SGD(learning_rate=5.0, parameters=net.parameters())  # CAUSE
    for _ in range(steps):
        x = paddle.randn([16, 3])
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
paddle.seed(0)
print(train(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1)), 60))
"""

# A schedule that rises too high, by a variable: the line that says how high.
WARMUP = """
import paddle
import paddle.nn as nn
paddle.seed(0)
net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
schedule = paddle.optimizer.lr.LinearWarmup(
    learning_rate=3.0,
    warmup_steps=20,
    start_lr=0.01,
    end_lr=3.0,  # CAUSE
)
optimizer = paddle.optimizer.SGD(learning_rate=schedule, parameters=net.parameters())
for _ in range(60):
    x = paddle.randn([16, 3])
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print(loss.item(), optimizer.get_lr() > 1)
"""
ON_ONE_LINE = WARMUP.replace(
    """(
    learning_rate=3.0,
    warmup_steps=20,
    start_lr=0.01,
    end_lr=3.0,  # CAUSE
)""",
    "(3.0, warmup_steps=20, start_lr=0.01, end_lr=3.0)  # CAUSE",
)
# The rate that it goes on with is small, and no more than that is named.
IN_A_FUNCTION = (
    WARMUP.replace("schedule = paddle", "def scheduled():\n  made = paddle")
    .replace("\n)\noptimizer", "\n  )\n  return made\nschedule = scheduled()\noptimizer")
    .replace("  # CAUSE", "")
    .replace("parameters=net.parameters())", "parameters=net.parameters())  # CAUSE")
)

# An array that numpy computed in the function that makes a tensor of it.
COLLATED = """
import numpy as np, paddle, paddle.nn as nn
def batches(signals):
    for begin in range(0, len(signals), 4):
        x = np.stack(signals[begin : begin + 4])
        spread = x.std(1, keepdims=True)
        with np.errstate(all="ignore"):
            x = (x - x.mean(1, keepdims=True)) / spread  # CAUSE
        x = x.astype("float32")
        yield paddle.to_tensor(x).flatten(1)
rng = np.random.default_rng(0)
signals = [rng.normal(size=(16, 3)) for _ in range(8)]
signals[5][:, 1] = 0.0
paddle.seed(0)
net = nn.Linear(48, 1)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
for x in batches(signals):
    loss = net(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
"""

ATTENTION = """
import paddle
import paddle.nn as nn
class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x, padding):
        scores = paddle.matmul(self.q(x), self.k(x), transpose_y=True)
        scores = paddle.where(padding, paddle.full_like(scores, float("-inf")), scores)  # CAUSE
        return paddle.matmul(nn.functional.softmax(scores, -1), x)
paddle.seed(0)
net = Attention()
padding = paddle.to_tensor([[False, False, True], [True, True, True]]).unsqueeze(1).expand([2, 3, 3])
net(paddle.randn([2, 3, 8]), padding).mean().backward()
"""

ADDED_LATER = """
import paddle
import paddle.nn as nn
HIDDEN = paddle.full([1], -float("inf"))
def bias_of(lengths, most):
    hidden = paddle.arange(most).unsqueeze(0) >= lengths.unsqueeze(1)
    return paddle.where(hidden, HIDDEN, paddle.zeros([1]))  # CAUSE
class Pool(nn.Layer):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)
    def forward(self, x, bias):
        bias = bias.unsqueeze(-1)
        score = self.score(x) + bias
        score = score * 0.5
        return (nn.functional.softmax(score, axis=1) * x).sum(1)
paddle.seed(0)
net = Pool()
net(paddle.randn([3, 4, 8]), bias_of(paddle.to_tensor([2, 0, 4]), 4)).mean().backward()
"""

LAYER = """
import paddle
class Norm(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        n = x.norm()
        ctx.save_for_backward(x, n)
        return n
    @staticmethod
    def backward(ctx, grad):
        x, n = ctx.saved_tensor()
        unit = x / n  # CAUSE
        return grad * unit
x = paddle.zeros([3])
x.stop_gradient = False
Norm.apply(x * 1).backward()
"""

DIVISION = """
import paddle
import paddle.nn as nn
paddle.seed(0)
net = nn.Linear(4, 4)
def weighted(values, weights):
    return (values * weights).sum() / weights.sum()  # CAUSE
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
for step in range(5):
    mask = (paddle.rand([8, 4]) > (2.0 if step == 3 else 0.5)).astype("float32")
    loss = weighted(net(paddle.randn([8, 4])) ** 2, mask)
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

WEIGHTS = """
import paddle
import paddle.nn as nn
class Scale(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.scale = self.create_parameter([width])
        self.scale.set_value(paddle.zeros([width]) / 0)  # CAUSE
    def forward(self, x):
        return x * self.scale
net = nn.Sequential(nn.Linear(3, 4), Scale(4))
net(paddle.ones([2, 3])).mean().backward()
"""

# Gradients are divided by their norm, which is 0 once no row is left to learn from.
NORMALISED = """
import paddle, paddle.nn as nn
paddle.seed(0)
net = nn.Linear(3, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
def normalise():
    for p in net.parameters():
        p.grad = p.grad / p.grad.norm()  # CAUSE
for step in range(6):
    x = paddle.randn([8, 3])
    loss = (net(x) - 1).clip(min=50 if step == 4 else -99).pow(2).sum()
    optimizer.clear_grad()
    loss.backward()
    normalise()
    optimizer.step()
"""

HEALTHY = """
import paddle
import paddle.nn as nn
paddle.seed(0)
# Masks of -inf, an infinite best loss, infinities and NaN in metrics, a NaN batch that is skipped.
best, table = paddle.to_tensor(float("inf")), paddle.full([3, 3], float("nan"))
attention = nn.MultiHeadAttention(8, 2)
optimizer = paddle.optimizer.Adam(parameters=attention.parameters())
for step in range(6):
    x = paddle.randn([2, 5, 8])
    causal = paddle.triu(paddle.full([5, 5], float("-inf")), 1)
    out = attention(x, x, x, attn_mask=causal)
    scores = paddle.matmul(out, out, transpose_y=True)
    scores = paddle.where(paddle.eye(5) > 0, paddle.full_like(scores, float("-inf")), scores)
    loss = out.pow(2).mean() - (nn.functional.softmax(scores, -1) * x.sum(-1, keepdim=True)).mean()
    if step == 3:
        loss = loss * float("nan")
    if not paddle.isfinite(loss):
        continue
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
    best = paddle.minimum(best, loss.detach())
    with paddle.no_grad():
        table[step % 3, 0] = paddle.log(paddle.zeros([]))
        ratio = (x > 9).astype("float32").sum() / (x > 9).astype("float32").sum()
print(best.item())
# A safe sqrt, and the gradient penalty of a GAN.
critic = nn.Linear(4, 1)
x = paddle.randn([8, 4])
x.stop_gradient = False
slope = paddle.grad(critic(x).sum(), x, create_graph=True)[0]
((slope.norm(2, axis=1) - 1) ** 2).mean().backward()
y = paddle.zeros([3])
y.stop_gradient = False
safe = paddle.where(y > 0, y, paddle.ones_like(y)).sqrt()
paddle.where(y > 0, safe, paddle.zeros_like(y)).sum().backward()
print(y.grad.sum().item())
"""


TABLE = """
import numpy as np
import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset

paddle.seed(0)


class Stations(Dataset):
    def __init__(self):
        super().__init__()
        raw = np.random.default_rng(0).normal(size=(40, 4))
        raw[9, 2] = np.nan
        self.table = raw.astype("float32")  # CAUSE

    def __getitem__(self, index):
        return self.table[index, :3], self.table[index, 3:]

    def __len__(self):
        return len(self.table)


def main():
    loader, net = DataLoader(Stations(), batch_size=8, num_workers=0), nn.Linear(3, 1)
    for x, y in loader:
        loss = (net(x) - y).square().mean()
        loss.backward()
        net.clear_gradients()


main()
"""


CASES = [
    (COLLATED, "is computed"), (DISTANCE, "at 0"), (MASKED, "0 * inf"), (LOG_OF_ZERO, "log of 0"), (BATCH, "data"),
    (TABLE, "Stations.table"), (RATE, "diverges"), (WARMUP, "diverges"), (ON_ONE_LINE, "diverges"),
    (IN_A_FUNCTION, "diverges"),
    (ATTENTION, "masked"), (ADDED_LATER, "come from train.py"),
    (LAYER, "its own backward"), (DIVISION, "0 / 0"), (WEIGHTS, "0 / 0"),
    (NORMALISED, "between backward and step"),
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


def test_paddles_own_check_names_the_same_operator(runs: dict[str, Run], tmp_path: Path) -> None:
    """FLAGS_check_nan_inf ends the program at the first operator whose result has NaN or infinities."""
    distance = next(name for name, program in PROGRAMS.items() if program is DISTANCE)
    node = runs[distance].told[0]["node"]["name"]
    script = tmp_path / "checked.py"
    script.write_text(textwrap.dedent(DISTANCE).lstrip())
    environment = {**os.environ, "FLAGS_check_nan_inf": "1"}
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert plain.returncode != 0
    assert node == "SqrtGradNode" and "sqrt_grad" in plain.stdout + plain.stderr, plain.stderr[-2000:]
