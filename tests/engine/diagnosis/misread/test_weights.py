"""Scores that a Categorical takes for weights. Witness: whether ``exp(log_prob)`` of all actions is the framework's own
softmax of the scores."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch import distributions as D
import torch.nn.functional as F
from torch.distributions import Categorical
fw.manual_seed(0)
randn, no_grad = fw.randn, fw.no_grad
def made(scores):
    return Categorical(logits=scores)
def logs_of(scores):
    return F.log_softmax(scores, -1)
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.05)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle import distribution as D
import paddle.nn.functional as F
from paddle.distribution import Categorical
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
no_grad = fw.no_grad
def made(scores):
    return Categorical(scores)
def logs_of(scores):
    return F.log_softmax(scores, axis=-1)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.05, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
FIT = """
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer, clear = sgd(net)
x, reward = randn(8, 4), randn(8, 1)
for at in range(5):
    scores = net(x)
    with no_grad():
        actions = fw.multinomial(F.softmax(scores, -1), 1)
    loss = -(logs(scores, actions) * reward).mean()
    clear()
    loss.backward()
    optimizer.step()
with no_grad():
    scores = net(x)
    found = [logs(scores, fw.zeros_like(actions) + each).exp() for each in range(3)]
    apart = (fw.concat(found, 1) - F.softmax(scores, -1)).abs().max().item()
print("a softmax" if apart < 1e-5 else "no softmax")
"""


def logs(*lines: str, before: str = "") -> str:
    return before + "def logs(scores, actions):" + "".join(f"\n    {line}" for line in lines) + "\n"


BUGGY = {  # on Paddle
    "log_prob": logs("policy = Categorical(scores)", "return policy.log_prob(actions)  # CAUSE"),
    "by its word": logs("policy = D.Categorical(logits=scores)", "return policy.log_prob(actions)  # CAUSE"),
    "probs": logs("policy = Categorical(scores)", "return (policy.probs(actions).abs() + 1e-6).log()  # CAUSE"),
    "in one line": logs("return fw.distribution.Categorical(scores).log_prob(actions)  # CAUSE"),
    "made elsewhere": logs("policy = made(scores)", "return policy.log_prob(actions)  # CAUSE"),
    "drawn from as well": logs("policy = Categorical(scores)", "bonus = policy.entropy().mean()",
                               "return policy.log_prob(actions) + 0 * bonus  # CAUSE"),
}  # fmt: skip
HEALTHY = {
    "log_softmax": logs("return (logs_of(scores) * F.one_hot(actions.reshape([-1]), 3)).sum(-1, keepdim=True)"),
    "weights": {
        "torch": logs("return Categorical(probs=F.softmax(scores, -1)).log_prob(actions[:, 0])[:, None]"),
        "paddle": logs("return Categorical(F.softmax(scores, axis=-1)).log_prob(actions)"),
    },
    "positive numbers": {
        "torch": logs("return Categorical(probs=scores.exp()).log_prob(actions[:, 0])[:, None]"),
        "paddle": logs("return Categorical(scores.exp()).log_prob(actions)"),
    },
    "scores, only drawn from": {
        "torch": logs("with no_grad():", "    drawn = made(scores).sample()",
                      "return fw.gather(logs_of(scores), 1, actions)"),
        "paddle": logs("with no_grad():", "    drawn = made(scores).sample([1])",
                       "return fw.take_along_axis(logs_of(scores), actions, 1)"),
    },
    "scores, their entropy": {
        "torch": logs("bonus = made(scores).entropy()",
                      "return fw.gather(logs_of(scores), 1, actions) + 0 * bonus[:, None]"),
        "paddle": logs("bonus = made(scores).entropy()",
                       "return fw.take_along_axis(logs_of(scores), actions, 1) + 0 * bonus[:, None]"),
    },
    "looked at": {
        "torch": logs("with no_grad():", "    shown = made(scores).log_prob(actions[:, 0])",
                      "return fw.gather(logs_of(scores), 1, actions)"),
        "paddle": logs("with no_grad():", "    shown = made(scores).probs(actions)",
                       "return fw.take_along_axis(logs_of(scores), actions, 1)"),
    },
    "shares of a sum": {
        "torch": logs("shares = scores.exp() / scores.exp().sum(-1, keepdim=True)",
                      "return fw.gather(shares, 1, actions).log()"),
        "paddle": logs("shares = scores.exp() / scores.exp().sum(-1, keepdim=True)",
                       "return fw.take_along_axis(shares, actions, 1).log()"),
    },
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    return HEAD[framework] + (part if isinstance(part, str) else part[framework]) + FIT


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {**HEALTHY, **(BUGGY if request.param == "paddle" else TORCHS)}
    texts = {name: text(request.param, part) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


TORCHS = {"scores": logs("return made(scores).log_prob(actions[:, 0])[:, None]")}  # torch's takes them as they are
paddle = pytest.mark.parametrize("runs", [case("paddle", "paddle", group="weights-paddle")], indirect=True)
torch = pytest.mark.parametrize("runs", [case("torch", "torch", group="weights-torch")], indirect=True)
each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"weights-{name}") for name in FRAMEWORKS], indirect=True
)


@paddle
@pytest.mark.parametrize("name", BUGGY)
def test_scores_that_are_divided_by_their_sum(runs: dict[str, Run], name: str) -> None:
    assert "no softmax\n" in runs[name].plain, runs[name]
    runs[name].check_names("loss-input")
    assert runs[name].check_first("loss-input")["severity"] == "error"


@torch
def test_scores_of_which_a_softmax_is_taken(runs: dict[str, Run]) -> None:
    assert "a softmax\n" in runs["scores"].plain
    runs["scores"].check_healthy()


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_a_distribution(runs: dict[str, Run], name: str) -> None:
    assert "a softmax\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
