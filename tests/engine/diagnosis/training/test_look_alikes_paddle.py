"""Right programs on Paddle that come as near to a bug of the loop as a right program can: one step of a stale gradient,
a loss that is run backward again behind a step, micro-batches that are the same."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run

HEAD = """
import paddle
from paddle import nn
paddle.seed(0)
x, y = paddle.randn([16, 6]), paddle.randn([16, 1])
"""

PROGRAMS = {
    # A step with the gradient of the first half, then one with that of the whole: one stale gradient in a row.
    "one stale step": """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for epoch in range(6):
    optimizer.clear_grad()
    for half in (slice(0, 8), slice(8, 16)):
        ((model(x[half]) - y[half]).pow(2).sum() / 16).backward()
        optimizer.step()
""",
    # A linear model: its graph is as good behind a step as before it.
    "a step in between": """
model = nn.Linear(6, 1, bias_attr=False)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for epoch in range(4):
    optimizer.clear_grad()
    loss = model(x).mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    loss.backward()
    optimizer.step()
""",
    # Micro-batches of the same data: the gradient doubles, and the loss may lie where the one before lay.
    "the same micro-batch": """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for epoch in range(4):
    for micro in range(2):
        ((model(x) - y).pow(2).mean() / 2).backward()
    optimizer.step()
    optimizer.clear_grad()
""",
    "the same micro-batch without a module": """
w = paddle.create_parameter([6, 1], "float32")
optimizer = paddle.optimizer.SGD(0.01, parameters=[w])
for epoch in range(4):
    for micro in range(2):
        (((x @ w - y) ** 2).mean() / 2).backward()
    optimizer.step()
    optimizer.clear_grad()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_false_alarm(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
