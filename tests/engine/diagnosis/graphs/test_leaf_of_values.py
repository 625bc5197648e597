"""Losses that are tensors made of the numbers of others: the gradient ends there, and not where actions are drawn.
Witness: what gradient the policy's weight got."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
from torch.distributions import Categorical
fw.manual_seed(0)
randn = fw.randn
def adam(net):
    optimizer = fw.optim.Adam(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
def drawn(probs):
    return fw.multinomial(probs, 1)
def chosen(logs, at):
    return logs.gather(1, at)
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
from paddle.distribution import Categorical
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
def adam(net):
    optimizer = fw.optimizer.Adam(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def drawn(probs):
    return fw.multinomial(probs, 1)
def chosen(logs, at):
    return fw.take_along_axis(logs, at, 1)
""",
}
START = """
policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer, clear = adam(policy)
for episode in range(6):
    terms, rewards = [], []
    for _ in range(5):
        state = randn(1, 4)
        probs = F.softmax(policy(state), -1)
        action = drawn(probs)
        log = fw.log(chosen(probs, action)).squeeze()
        reward = float(action.item() == 1)
        TERM
    LOSS
    clear()
    loss.backward()
    optimizer.step()
first = next(iter(policy.parameters()))
print("got a gradient:", first.grad is not None and bool(first.grad.abs().sum() > 0))
"""
TERM = "terms.append(-log * reward)"
MADE = {"torch": "fw.tensor(terms, requires_grad=True)", "paddle": "fw.to_tensor(terms, stop_gradient=False)"}


def program(loss: str, term: str = TERM) -> str:
    return START.replace("TERM", term).replace("LOSS", loss)


BUGGY = {
    "a mean": program("loss = MADE.mean()  # CAUSE"),
    "a sum": program("loss = MADE.sum()  # CAUSE"),
    "on two lines": program("values = MADE  # CAUSE\n    loss = values.mean()"),
    "numbers": program("loss = MADE.mean()", "terms.append((-log * reward).item())  # CAUSE"),
    "numbers by float": program("loss = MADE.mean()", "terms.append(float(-log * reward))  # CAUSE"),
    "one number": program("loss = MADE  # CAUSE").replace("MADE", "ONE"),
    "weights of returns": program("returns = fw.FROM([sum(rewards[at:]) for at in range(5)])\n    "
                                  "loss = (MADE * returns).mean()  # CAUSE",
                                  "terms.append(-log)\n        rewards.append(reward)"),
    "of a method": program("loss = MADE.mean()  # CAUSE").replace(
        "action = drawn(probs)", "action = Categorical(probs=probs).sample().unsqueeze(-1)"),
}  # fmt: skip
HEALTHY = {
    "a stack": program("loss = fw.stack(terms).mean()"),
    "a sum of a list": program("loss = sum(terms) / len(terms)"),
    "returns of numbers": program("returns = fw.FROM([sum(rewards[at:]) for at in range(5)])\n    "
                                  "loss = (fw.stack(terms) * returns).mean()",
                                  "terms.append(-log)\n        rewards.append(reward)"),
    "what is shown": program("loss = fw.stack(terms).mean()\n    shown = fw.FROM([each.item() for each in "
                             "terms]).mean()"),
}  # fmt: skip


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    made = MADE[framework]
    words = {"MADE": made, "ONE": made.replace("terms", "float(sum(terms))"),
             "FROM": "tensor" if framework == "torch" else "to_tensor"}  # fmt: skip
    for old, new in words.items():
        parts = {name: part.replace(old, new) for name, part in parts.items()}
    if framework == "paddle":  # it takes what a softmax gave, as scores
        parts = {name: part.replace("Categorical(probs=probs).sample()", "Categorical(probs).sample()")
                 for name, part in parts.items()}  # fmt: skip
    return {name: HEAD[framework] + part for name, part in parts.items()}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"graphs-leaf-of-values-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_gradient_ends_at_the_leaf(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "got a gradient: False\n" in run.plain, run
    first = run.check_first("no-gradient")
    assert first["severity"] == "error" and len(run.above_notes()) == 1, run


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_the_gradient_reaches_the_policy(runs: dict[str, Run], name: str) -> None:
    assert "got a gradient: True\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
