"""Learning rates of groups, which Paddle multiplies by the optimizer's own. Witness: how far a weight moves."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import case

HEAD = """
import paddle
from paddle import nn
paddle.seed(0)
body, head = nn.Linear(4, 6), nn.Linear(6, 1)
start = head.weight.clone()
"""
FIT = """
for step in range(30):
    loss = (head(paddle.tanh(body(paddle.randn([8, 4])))) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
print("moved" if float((head.weight - start).abs().max()) > 1e-2 else "hardly moved")
"""
# The head, whose weight the witness looks at, has its own rate; the body has the optimizer's.
ONE_OF_THEM = """
rates = {"head_lr": 4e-3, "lr": 1e-2}
groups = [
    {"params": body.parameters()},
    {"params": head.parameters(), "learning_rate": rates["head_lr"]},  # CAUSE
]
optimizer = paddle.optimizer.Adam(rates["lr"], parameters=groups)
"""
BUGGY = {
    "one of them": ONE_OF_THEM,
    "two groups": """
groups = [
    {"params": body.parameters(), "learning_rate": 2e-3},  # CAUSE
    {"params": head.parameters(), "learning_rate": 1e-2},
]
optimizer = paddle.optimizer.Adam(1e-2, parameters=groups)
""",
    "in a function": """
def made(rate):
    schedule = paddle.optimizer.lr.StepDecay(rate, step_size=100)
    return paddle.optimizer.AdamW(schedule, parameters=[
        {"params": body.parameters(), "learning_rate": rate},  # CAUSE
        {"params": head.parameters(), "learning_rate": rate},
    ])
optimizer = made(0.01)
""",
}
LAYERS = """
first, layers = body, nn.LayerList([nn.Linear(6, 6) for _ in range(24)])
def body(data):
    data = first(data)
    for layer in layers:
        data = data + layer(data) / 24
    return data
groups = [
    {"params": each.parameters(), "learning_rate": 0.75 ** at} for at, each in enumerate([head, *layers, first])
]
optimizer = paddle.optimizer.AdamW(1e-3, parameters=groups)
"""
SLOW = ("a multiple", "a part of it", "meant to crawl", "a quotient")  # as they are meant to be
HEALTHY = {
    "meant to crawl": ONE_OF_THEM.replace('rates["head_lr"]', "1e-3")
    .replace('rates["lr"], ', "1e-3, ")
    .replace("  # CAUSE", ""),
    "a quotient": ONE_OF_THEM.replace('["head_lr"]', '["head_lr"] / rates["lr"] * 0.01').replace("  # CAUSE", ""),
    "layer by layer": LAYERS,
    "a multiple": ONE_OF_THEM.replace("head_lr", "head_lr_mult").replace("  # CAUSE", ""),
    "a part of it": ONE_OF_THEM.replace('rates["head_lr"]', "0.01").replace("  # CAUSE", ""),
    "parts of its own": """
optimizer = paddle.optimizer.Adam(1e-2, parameters=[
    {"params": body.parameters(), "learning_rate": 0.01}, {"params": head.parameters()}])
""",
    "a body of its own": """
optimizer = paddle.optimizer.Adam(3e-2, parameters=[
    {"params": body.parameters(), "learning_rate": 0.1}, {"params": head.parameters(), "learning_rate": 1.0}])
""",
    "no groups": "optimizer = paddle.optimizer.Adam(1e-2, parameters=[*body.parameters(), *head.parameters()])\n",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD + text + FIT for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


paddle = pytest.mark.parametrize("runs", [case("paddle", "paddle", group="multiplied-paddle")], indirect=True)


@paddle
@pytest.mark.parametrize("name", BUGGY)
def test_rates_that_are_taken_for_factors(runs: dict[str, Run], name: str) -> None:
    assert "hardly moved" in runs[name].plain
    assert runs[name].check_first("zero-learning-rate")["severity"] == "warning"


@paddle
@pytest.mark.parametrize("name", HEALTHY)
def test_factors(runs: dict[str, Run], name: str) -> None:
    assert ("hardly moved" in runs[name].plain) == (name in SLOW)
    runs[name].check_healthy()
