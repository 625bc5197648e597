"""The bias of a score: what a softmax takes less one number is what it was, so that its gradient adds up to 0. Beside
biases of one number that are dead. Witness: what comes out with another bias, and what the weight's gradient is."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
randn, no_grad = fw.randn, fw.no_grad
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
no_grad = fw.no_grad
def randn(*shape):
    return fw.randn(shape)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
score, value, last = nn.Linear(6, 1), nn.Linear(6, 6), nn.Linear(6, 1)
optimizer, clear = sgd(nn.Sequential(score, value, last))
MADE
def forward(x):
    seen = fw.tanh(value(x))
    BODY
x = randn(8, 5, 6)
for at in range(6):
    loss = (forward(x) - x.sum([1, 2])[:, None]).square().mean()
    clear()
    loss.backward()
    reached = bool((score.weight.grad.abs().sum() > 1e-4).item())
    optimizer.step()
with no_grad():
    before = forward(x)
    score.bias[:] = score.bias + 1.0
    moved = (forward(x) - before).abs().max().item() > 1e-4
print("the bias", "counts," if moved else "does not count,", "the weight", "is trained" if reached else "is dead")
"""


def program(*lines: str, made: str = "") -> str:
    return START.replace("BODY", "\n    ".join(lines)).replace("MADE", made)


SUMS = "return last((weights * seen).sum(1))"
HEALTHY = {
    "of an attention": program("weights = F.softmax(score(seen), 1)", SUMS),
    "squeezed": program("weights = F.softmax(score(seen).squeeze(-1), -1).unsqueeze(-1)", SUMS),
    "a module": program("weights = nn.Softmax(1)(score(seen))", SUMS),
    "divided": program("weights = F.softmax(score(seen) / 2.0, 1)", SUMS),
    "by exponents": program("scores = score(seen)", "weights = fw.exp(scores - fw.logsumexp(scores, 1, True))", SUMS),
    "less the mean": program("scores = score(seen)", "weights = scores - scores.mean(1, keepdim=True)", SUMS),
}  # fmt: skip
# A unit that is off always: its bias is no shift.
LOW = "with no_grad():\n    score.bias[:] = score.bias - 50.0  # CAUSE"
BUGGY = {
    "a dead unit": program("weights = F.relu(score(seen))", SUMS, made=LOW),
    "a dead unit, a module": program("weights = nn.ReLU()(score(seen))", SUMS, made=LOW),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + part for name, part in {**BUGGY, **HEALTHY}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"shifts-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_a_bias_that_shifts_all_scores(runs: dict[str, Run], name: str) -> None:
    assert "the bias does not count, the weight is trained\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_bias_that_is_dead(runs: dict[str, Run], name: str) -> None:
    assert "the weight is dead\n" in runs[name].plain, runs[name]
    first = runs[name].check_first("zero-gradient")
    assert "score.bias" in " ".join([first["message"], *first["evidence"]]) or "bias" in first["message"], first
