"""An advantage that trains its critic by the loss of the policy, or whose sign is turned. Witness: whether the
framework's own derivative of the policy's loss by the critic's weight is 0; and whether that by the log-probabilities
is above 0 where the return is above the value."""

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
randn, derived, no_grad = fw.randn, fw.autograd.grad, fw.no_grad
def sgd(*modules):
    optimizer = fw.optim.SGD([one for each in modules for one in each.parameters()], 0.05)
    return optimizer, optimizer.zero_grad
def chosen(logs, at):
    return logs.gather(1, at[:, None]).squeeze(1)
def reaches(loss, weight):
    (given,) = derived([loss], [weight], retain_graph=True, allow_unused=True)
    return given is not None and bool(given.abs().sum() > 0)
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
from paddle.distribution import Categorical
fw.seed(0)
derived, no_grad = fw.grad, fw.no_grad
def randn(*shape):
    return fw.randn(shape)
def sgd(*modules):
    optimizer = fw.optimizer.SGD(0.05, parameters=[one for each in modules for one in each.parameters()])
    return optimizer, optimizer.clear_grad
def chosen(logs, at):
    return fw.take_along_axis(logs, at[:, None], 1).squeeze(1)
def reaches(loss, weight):
    (given,) = derived([loss], [weight], retain_graph=True, allow_unused=True)
    return given is not None and bool(given.abs().sum() > 0)
""",
}
START = """
actor, critic = nn.Linear(6, 3), nn.Linear(6, 1)
optimizer, clear = sgd(actor, critic)
for at in range(6):
    x, returns = randn(16, 6), randn(16)
    actions = x[:, :3].argmax(1)
    values = critic(x).squeeze(-1)
    logs = F.log_softmax(actor(x), -1)
    log = chosen(logs, actions)
    BODY
    if at == 5:
        print("trains the critic:", reaches(policy, critic.weight))
        (slope,) = derived([policy], [log], retain_graph=True)
        print("less likely:", bool(((slope * (returns - values)) > 0).all()))
    (policy + 0.5 * loss).backward()
    optimizer.step()
    clear()
"""


def program(*lines: str) -> str:
    return START.replace("BODY", "\n    ".join(lines))


MSE = "loss = F.mse_loss(values, returns)"
BUGGY = {
    "as it is": program("policy = -(log * (returns - values)).mean()  # CAUSE", MSE),
    "named before": program("advantage = returns - values", "policy = -(advantage * log).mean()  # CAUSE", MSE),
    "the other sign": program("worse = values - returns", "policy = (log * worse).mean()  # CAUSE", MSE),
    "scaled": program("advantage = (returns - values) / 2.0", "policy = (-log * advantage).mean()  # CAUSE", MSE),
    "a smooth loss": program("advantage = returns - values", "policy = -(log * advantage).mean()  # CAUSE",
                             "loss = F.smooth_l1_loss(values, returns)"),
    "by a distribution": {
        "torch": program("advantage = returns - values", "log = Categorical(logits=actor(x)).log_prob(actions)",
                         "policy = -(log * advantage).mean()  # CAUSE", MSE),
        "paddle": program("advantage = returns - values", "log = chosen(F.log_softmax(actor(x), axis=-1), actions)",
                          "policy = -(log * advantage).mean()  # CAUSE", MSE),
    },
    "squared by itself": program("advantage = returns - values", "policy = -(log * advantage).mean()  # CAUSE",
                                 "loss = advantage.square().mean()"),
    "squared by hand": program("advantage = returns - values", "policy = -(log * advantage).mean()  # CAUSE",
                               "loss = ((values - returns) ** 2).mean()"),
}  # fmt: skip
HEALTHY = {
    "detached": program("policy = -(log * (returns - values).detach()).mean()", MSE),
    "values detached": program("advantage = returns - values.detach()", "policy = -(log * advantage).mean()", MSE),
    "no gradient": program("with no_grad():", "    advantage = returns - critic(x).squeeze(-1)",
                           "policy = -(log * advantage).mean()", MSE),
    "normalised": program("advantage = (returns - values).detach()",
                          "advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)",
                          "policy = -(log * advantage).mean()", MSE),
    "squared, detached": program("advantage = returns - values", "policy = -(log * advantage.detach()).mean()",
                                 "loss = advantage.square().mean()"),
    "entropy beside it": program("policy = -(log * (returns - values).detach()).mean() + "
                                 "0.01 * (logs.exp() * logs).sum(-1).mean()", MSE),
}  # fmt: skip
TURNED = {
    "value less return": program("advantage = values.detach() - returns  # CAUSE",
                                 "policy = -(log * advantage).mean()", MSE),
    "no minus": program("advantage = (returns - values).detach()  # CAUSE", "policy = (log * advantage).mean()", MSE),
    "twice minus": program("advantage = returns - values.detach()  # CAUSE", "policy = -(log * -advantage).mean()",
                           MSE),
    "normalised": program("advantage = (values - returns).detach()  # CAUSE",
                          "advantage = (advantage - 0.0) / (advantage.std() + 1e-6)",
                          "policy = -(log * advantage).mean()", MSE),
    "by a factor": program("worse = values.detach() - returns  # CAUSE", "policy = (log * worse * -0.5).mean()", MSE),
    "squares by hand": program("advantage = values.detach() - returns  # CAUSE", "policy = -(log * advantage).mean()",
                               "loss = (values - returns).square().mean()"),
}  # fmt: skip
UPRIGHT = {
    "return less value": program("policy = -(log * (returns - values.detach())).mean()", MSE),
    "turned twice": program("worse = values.detach() - returns", "policy = (log * worse).mean()", MSE),
    "a negative factor": program("advantage = (returns - values).detach()", "policy = (log * advantage * -1.0).mean()",
                                 MSE),
    "another critic's": program("other = randn(16)", "advantage = (other - returns)", MSE,
                                "policy = -(log * advantage).mean()"),
}  # fmt: skip
# No critic's: the policy is meant to climb what it learns; temperatures and weights that are learnt.
LEARNT = """
actor, critic, heat = nn.Linear(6, 4), nn.Linear(10, 1), nn.Linear(1, 1)
optimizer, clear = sgd(actor, critic, heat)
for at in range(6):
    x, returns, noise = randn(16, 6), randn(16), randn(16, 4)
    mean = actor(x)
    action = mean + 0.3 * noise
    BODY
    loss.backward()
    optimizer.step()
    clear()
print("done")
"""


def learnt(*lines: str) -> str:
    return LEARNT.replace("BODY", "\n    ".join(lines))


ONES = "heat(x[:, :1] * 0 + 1).squeeze(-1)"
MEANT = {
    "a soft actor": learnt(
        "wise = critic(fw.concat([x, action], 1)).squeeze(-1)", "log = F.log_softmax(mean, -1).mean(-1)",
        "taken = critic(fw.concat([x, action.detach()], 1)).squeeze(-1)",
        "loss = (0.2 * log - wise).mean() + F.mse_loss(taken, returns)").replace(
            "actor, critic, heat)", "actor, critic)"),
    "a temperature": learnt(
        f"alpha = {ONES}", "log = F.log_softmax(mean, -1).mean(-1)",
        "taken = critic(fw.concat([x, action.detach()], 1)).squeeze(-1)",
        "loss = (alpha.detach() * log).mean() - (alpha * (log + 1.0).detach()).mean() + F.mse_loss(taken, returns)"),
    "weights of tasks": learnt(
        f"spread = {ONES}", "taken = critic(fw.concat([x, action], 1)).squeeze(-1)", "far = returns - taken",
        "loss = (fw.exp(-spread) * far * far + spread).mean() + F.mse_loss(taken, returns)"),
    "a likelihood of numbers": learnt(
        "taken = critic(fw.concat([x, action], 1)).squeeze(-1)", f"width = F.softplus({ONES}) + 0.1",
        "far = (returns - taken) / width",
        "loss = (0.5 * far * far + fw.log(width)).mean() + F.mse_loss(taken, returns)"),
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    part = part if isinstance(part, str) else part[framework]
    return HEAD[framework] + part


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: text(request.param, part) for name, part in {**BUGGY, **HEALTHY, **MEANT}.items()}
    texts |= {f"sign, {name}": text(request.param, part) for name, part in (TURNED | UPRIGHT).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"advantage-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


def check_trained(run: Run) -> None:
    assert "trains the critic: True\n" in run.plain, run
    first = run.check_first("no-gradient")
    assert first["severity"] == "warning" and "trains the critic, too; detach it" in first["message"], first


@each
@pytest.mark.parametrize("name", BUGGY)
def test_advantages_that_train_the_critic(runs: dict[str, Run], name: str) -> None:
    check_trained(runs[name])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_advantages_that_are_numbers(runs: dict[str, Run], name: str) -> None:
    assert "trains the critic: False\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", MEANT)
def test_what_is_no_advantage(runs: dict[str, Run], name: str) -> None:
    assert "done\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", TURNED)
def test_advantages_whose_sign_is_turned(runs: dict[str, Run], name: str) -> None:
    run = runs[f"sign, {name}"]
    assert "less likely: True\n" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "warning" and "has the wrong sign" in first["message"], first


@each
@pytest.mark.parametrize("name", UPRIGHT)
def test_advantages_that_are_upright(runs: dict[str, Run], name: str) -> None:
    run = runs[f"sign, {name}"]
    assert name == "another critic's" or "less likely: False\n" in run.plain, run
    run.check_healthy()
