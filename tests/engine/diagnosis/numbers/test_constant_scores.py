"""Scores that a broadcast makes the same for all that a softmax chooses from."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

TORCH = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(5)
x, y = torch.randn(24, 6), torch.randint(0, 3, (24,))
linked = (torch.rand(24, 24) < 0.3) | torch.eye(24, dtype=torch.bool)
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.values, self.mine, self.theirs = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    def forward(self, x):
        h = self.values(x)
        SCORES
        return F.softmax(scores, dim=1) @ h
net = nn.Sequential(Attention(), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(6):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print([float(p.grad.abs().max()) for n, p in net.named_parameters() if "mine.weight" in n or "theirs.weight" in n])
"""
PADDLE = """
import paddle
import paddle.nn.functional as F
from paddle import nn
paddle.seed(5)
x, y = paddle.randn([24, 6]), paddle.randint(0, 3, [24])
linked = paddle.logical_or(paddle.rand([24, 24]) < 0.3, paddle.eye(24) > 0)
class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.values, self.mine, self.theirs = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    def forward(self, x):
        h = self.values(x)
        SCORES
        return paddle.matmul(F.softmax(scores, axis=1), h)
net = nn.Sequential(Attention(), nn.ReLU(), nn.Linear(8, 3))
optimizer = paddle.optimizer.Adam(1e-2, parameters=net.parameters())
for step in range(6):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    grads = [float(net[0].mine.weight.grad.abs().max()), float(net[0].theirs.weight.grad.abs().max())]
    optimizer.step()
    optimizer.clear_grad()
print(grads)
"""


def _program(base: str, *lines: str) -> str:
    return base.replace("SCORES", "\n        ".join(lines))


ONE = "e = self.mine(h) * self.theirs(h)"  # number for each row
WRONG = {
    "torch": {
        "where": _program(
            TORCH, "e = F.leaky_relu(self.mine(h) + self.theirs(h), 0.2)  # CAUSE",
            "scores = torch.where(linked, e, torch.full((1,), -1e9))",
        ),
        "filled": _program(TORCH, ONE, "scores = e.masked_fill(~linked, float('-inf'))  # CAUSE"),
        "copied": _program(TORCH, ONE, "scores = e.expand(24, 24) + linked.float().log()  # CAUSE"),
    },
    "paddle": {
        "where": _program(
            PADDLE, "e = F.leaky_relu(self.mine(h) + self.theirs(h), 0.2)  # CAUSE",
            "scores = paddle.where(linked, e, paddle.full([1], -1e9))",
        ),
        "added": _program(
            PADDLE, ONE, "scores = e + (linked.astype('float32') - 1) * 1e9  # CAUSE",
        ),
    },
}  # fmt: skip
# A score for each pair; a fill that the softmax leaves something of, by which the scores are trained; a mask that is
# learnt.
RIGHT = {
    "torch": {
        "turned": _program(
            TORCH, "e = F.leaky_relu(self.mine(h) + self.theirs(h).T, 0.2)",
            "scores = torch.where(linked, e, torch.full((1,), -1e9))",
        ),
        "small fill": _program(
            TORCH, "e = self.mine(h) + self.theirs(h)", "scores = torch.where(linked, e, torch.zeros(1))"
        ),
        "learnt mask": _program(TORCH, "scores = self.mine(h) + h @ h.T + self.theirs(h).T"),
    },
    "paddle": {
        "turned": _program(
            PADDLE, "e = F.leaky_relu(self.mine(h) + self.theirs(h).T, 0.2)",
            "scores = paddle.where(linked, e, paddle.full([1], -1e9))",
        ),
        "small fill": _program(
            PADDLE, "e = self.mine(h) + self.theirs(h)", "scores = paddle.where(linked, e, paddle.zeros([1]))"
        ),
    },
}  # fmt: skip
# Scores that nobody trains decide, beside one for each row that is trained in vain: the weights differ.
GIVEN = "scores = self.mine(h) * self.theirs(h) + linked_to"
DECIDED = {
    "torch": _program(TORCH.replace("class Attention", "linked_to = -3 * torch.rand(24, 24)\nclass Attention"), GIVEN),
    "paddle": _program(
        PADDLE.replace("class Attention", "linked_to = -3 * paddle.rand([24, 24])\nclass Attention"), GIVEN
    ),
}
_ROUNDING = 1e-6  # gradients of about 1 are cancelled


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    texts = {f"wrong {key}": text for key, text in WRONG[name].items()}
    texts |= {f"right {key}": text for key, text in RIGHT[name].items()}
    texts["decided"] = DECIDED[name]
    found = diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)
    return {"": name, **found}  # type: ignore[dict-item]


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"constant-scores-{name}") for name in FRAMEWORKS], indirect=True
)


def _gradients(run: Run) -> list[float]:
    """The framework's own, of what makes the scores."""
    printed = next(line for line in run.output.splitlines() if line.startswith("["))
    return [float(number) for number in printed.strip("[]").split(",")]


@each
def test_the_broadcast_is_the_cause(runs: dict[str, Run]) -> None:
    for key in WRONG[str(runs[""])]:
        run = runs[f"wrong {key}"]
        found = run.check_first("zero-gradient")
        assert "scores that are one and the same" in found["message"], (key, found)
        assert max(_gradients(run)) < _ROUNDING, (key, run.output)


@each
def test_nothing_is_said_of_scores_that_differ_untrained(runs: dict[str, Run]) -> None:
    run = runs["decided"]
    assert not any("one and the same" in found["message"] for found in run.every), run
    assert max(_gradients(run)) < _ROUNDING, run.output


@each
def test_scores_that_differ_are_trained(runs: dict[str, Run]) -> None:
    for key in RIGHT[str(runs[""])]:
        run = runs[f"right {key}"]
        assert not run.above_notes(), (key, run)
        assert max(_gradients(run)) > 100 * _ROUNDING, (key, run.output)
