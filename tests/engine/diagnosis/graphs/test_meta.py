"""Learners in two loops: what the inner one adapts is cut from the weights of the outer one, of which gradients were
asked for all the same. Witness: whether the weights of the outer one change."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
def noise(*shape):
    return framework.randn(*shape)
def weight(*shape):
    return nn.Parameter(0.3 * noise(*shape))
class Base(nn.Module):
    pass
def adam(weights):
    return framework.optim.Adam(weights, 0.01)
ask = framework.autograd.grad
def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
def noise(*shape):
    return framework.randn(shape)
def weight(*shape):
    start = nn.initializer.Normal(0.0, 0.3)
    return framework.create_parameter(shape, "float32", default_initializer=start)
class Base(nn.Layer):
    pass
def adam(weights):
    return framework.optimizer.Adam(0.01, parameters=weights)
ask = framework.grad
def clear(optimizer):
    optimizer.clear_grad(set_to_zero=False)
""",
}
META = """
class Learner(Base):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.rate = weight(3, 8), weight(8, 1), weight(1)
    def run(self, x, first, second):
        return (x @ first).tanh() @ second
    def adapt(self, x, y):
        fast = [self.first, self.second]
        for _ in range(2):
            loss = (self.run(x, *fast) - y).square().mean()
            grads = ask(loss, fast, create_graph=True)
            fast = [UPDATE for p, g in zip(fast, grads)]LINE
        return fast
learner = Learner()
optimizer = adam(learner.parameters())
before = learner.first.clone().detach()
for step in range(12):
    total = 0.0
    for task in range(2):
        x, factor = noise(10, 3), noise(3, 1)
        fast = learner.adapt(x[:5], x[:5] @ factor)
        total = total + (learner.run(x[5:], *fast) - x[5:] @ factor).square().mean() / 2
    clear(optimizer)
    total.backward()
    optimizer.step()
print("same", bool((learner.first == before).all()))
"""
CAUSE = "  # CAUSE"
DETACHED = META.replace("UPDATE", "p.detach() - self.rate * g.detach()").replace("LINE", CAUSE)
LEAVES = META.replace("UPDATE", "leaf(p.detach() - 0.1 * g.detach())").replace("LINE", CAUSE).replace(
    "class Learner", """
def leaf(value):
    value.stop_gradient = False
    return value.requires_grad_() if hasattr(value, "requires_grad_") else value
class Learner"""
)  # fmt: skip
BUGS = {"detached": DETACHED, "leaves": LEAVES}
# The gradients of the inner loop have no graph: nothing goes through its steps. That may be meant: a note.
FIRST_ORDER = META.replace("LINE", "").replace("fast, create_graph=True)", "fast)  # CAUSE").replace(
    ", self.rate = weight(3, 8), weight(8, 1), weight(1)", " = weight(3, 8), weight(8, 1)"
)  # fmt: skip
FIRST_ORDERS = {
    "two steps": FIRST_ORDER.replace("UPDATE", "p - 0.1 * g"),
    "one step": FIRST_ORDER.replace("UPDATE", "p - g.clip(-1.0, 1.0) * 0.1").replace(
        "range(2):\n            loss", "range(1):\n            loss"
    ),
    "added": FIRST_ORDER.replace("UPDATE", "p + (-0.1) * g / (1 + g.square().mean())"),
}
# The right way; the first order of it, too.
SECOND = META.replace("UPDATE", "p - self.rate * g").replace("LINE", "")
FIRST = META.replace("UPDATE", "p - self.rate * g.detach()").replace("LINE", "")
# Gradients that are asked for and handed to the optimizer by hand: of a first order, taken at the adapted weights.
HANDED = """
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
weights = list(net.parameters())
optimizer = adam(weights)
for step in range(20):
    x = noise(10, 3)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    grads = ask(loss, weights)
    clear(optimizer)
    for p, g in zip(weights, grads):
        p.grad = g
    optimizer.step()
"""
# No optimizer at all, and a moving average beside.
BY_HAND = """
first, second = weight(3, 8), weight(8, 1)
with framework.no_grad():
    mean = first.clone()
for step in range(20):
    x = noise(10, 3)
    loss = ((x @ first).tanh() @ second - x.sum(1, keepdim=True)).square().mean()
    grads = ask(loss, [first, second])
    with framework.no_grad():
        for p, g in zip((first, second), grads):
            SET
        mean = 0.9 * mean + 0.1 * first
"""
# Of an input alone is a gradient asked for, and the weights get theirs by a backward.
PENALTY = """
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = adam(net.parameters())
for step in range(12):
    x = noise(10, 3)
    x.stop_gradient = False
    x = x.requires_grad_() if hasattr(x, "requires_grad_") else x
    (slope,) = ask(net(x).sum(), [x], create_graph=True)
    loss = (slope - 1).square().mean()
    clear(optimizer)
    loss.backward()
    optimizer.step()
"""
HEALTHY = {"penalty": PENALTY, "second": SECOND, "first": FIRST, "handed": HANDED, "by hand": BY_HAND}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    write = "p -= 0.1 * g" if request.param == "torch" else "p.set_value(p - 0.1 * g)"
    texts = {**BUGS, **HEALTHY, **FIRST_ORDERS}
    programs = {name: HEAD[request.param] + text.replace("SET", write) for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-meta-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGS)
def test_the_update_that_cuts_the_weights_off(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("no-gradient")
    assert found["severity"] == "error" and "first" in found["message"], found
    assert "same True" in runs[name].output


@each
@pytest.mark.parametrize("name", FIRST_ORDERS)
def test_steps_without_a_graph_are_said_to_be_of_the_first_order(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("no-gradient")
    assert found["severity"] == "note" and "first-order" in found["message"], found
    assert "same False" in runs[name].output


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_gradients_that_are_used(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
