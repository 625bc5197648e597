"""What is kept once in an epoch: the outputs of a validation that records its graph."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
noise, joined, grad_of = framework.randn, framework.cat, framework.autograd.grad
def clear(module):
    module.zero_grad()
def sgd(module):
    return framework.optim.SGD(module.parameters(), 0.05)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
noise, joined, grad_of = lambda *shape: framework.randn(shape), framework.concat, framework.grad
def clear(module):
    module.clear_gradients()
def sgd(module):
    return framework.optimizer.SGD(0.05, parameters=module.parameters())
""",
}

REPORT = """
class Report:
    def __init__(self):
        self.scores, self.epochs = [], {}
    def batch(self, scores):
        self.scores.append(scores)
    def end(self, epoch):
        self.epochs[epoch] = joined(self.scores)  # CAUSE
        self.scores = []
net, report = nn.Linear(4, 1), Report()
optimizer = sgd(net)
for epoch in range(4):
    for _ in range(20):
        optimizer.CLEAR()
        net(noise(8, 4)).square().mean().backward()
        optimizer.step()
    for _ in range(3):
        report.batch(net(noise(8, 4)))
    report.end(epoch)
"""
DETACHED = REPORT.replace("joined(self.scores)  # CAUSE", "joined(self.scores).detach()")
LAST = REPORT.replace("self.epochs[epoch] = joined(self.scores)  # CAUSE", "self.epochs['last'] = joined(self.scores)")
# A running mean of what a layer gives, made of itself by a function, or of a value of its own name.
MEAN = """
class Head:
    def __init__(self):
        self.mean = framework.zeros([4])
    def take(self, rows):
        kept = 0.9 * self.mean + 0.1 * rows.mean(0)
        self.mean = framework.where(rows[0] > 0, kept, self.mean)  # CAUSE
net, head = nn.Linear(4, 4), Head()
optimizer = sgd(net)
for _ in range(30):
    rows = net(noise(8, 4))
    head.take(rows)
    optimizer.CLEAR()
    rows.square().mean().backward()
    optimizer.step()
"""
GIVEN = MEAN.replace("self.mean = framework.where(rows[0] > 0, kept, self.mean)  # CAUSE", "self.mean = kept  # CAUSE")
CUT = MEAN.replace("head.take(rows)", "head.take(rows.detach())")
# A method with the name of one that fills a dict.
METER = """
class Meter:
    def __init__(self):
        self.total, self.count = framework.zeros([]), 0
    def update(self, x, rows):
        gap = (net(x + 0.1) - rows.detach()).square().mean()
        self.total = self.total + gap  # CAUSE
        self.count += 1
net = nn.Linear(4, 4)
class Trainer:
    def __init__(self):
        self.meter, self.optimizer = Meter(), sgd(net)
    def step(self, x):
        rows = net(x)
        self.optimizer.CLEAR()
        rows.square().mean().backward()
        self.optimizer.step()
        self.meter.update(x, rows)
trainer = Trainer()
for _ in range(30):
    trainer.step(noise(8, 4))
"""
# The state of many parameters, which a gradient with its graph goes into.
STATES = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
states = {}
for _ in range(24):
    loss = net(noise(8, 4)).square().mean()
    weights = net.parameters()
    for place, grad in enumerate(grad_of(loss, list(weights), create_graph=True)):
        state = states.setdefault(place, {"mean": grad.detach()})
        state["mean"] = 0.9 * state["mean"] + 0.1 * grad  # CAUSE
    loss = net(noise(8, 4)).square().mean()
    loss.backward()
    sgd(net).step()
    clear(net)
"""
# Two methods take turns to call backward, of which one holds the object under another name.
TURNS = """
class Trainer:
    def __init__(self):
        self.net, self.critic, self.mean = nn.Linear(4, 4), nn.Linear(4, 1), framework.zeros([4])
        self.optimizers = sgd(self.net), sgd(self.critic)
    def first(self, x):
        rows = self.net(x)
        self.mean = 0.9 * self.mean + 0.1 * rows.square().mean(0)  # CAUSE
        loss = self.critic(self.net(x)).square().mean()
        loss.backward()
        self.optimizers[0].step()
    def second(trainer, x):
        loss = (trainer.critic(x) - trainer.mean.detach().sum()).square().mean()
        loss.backward()
        trainer.optimizers[1].step()
trainer = Trainer()
def main():
    mine = trainer
    for step in range(20):
        x = noise(8, 4)
        mine.second(x)
        mine.first(x)
        [each.CLEAR() for each in mine.optimizers]
main()
"""
# States by the row, more than are looked at one by one, within tuples of a deque that has room.
ROWS = """
import collections
class Starts:
    def __init__(self):
        self.items = collections.deque(maxlen=50_000)
    def add(self, state):
        for h, s in zip(*state):
            self.items.append((h, s))  # CAUSE
net, starts = nn.Linear(4, 4), Starts()
optimizer = sgd(net)
for _ in range(12):
    rows = net(noise(400, 4))
    starts.add((rows, rows * 2))
    optimizer.CLEAR()
    net(noise(8, 4)).square().mean().backward()
    optimizer.step()
"""
NO_GRAPHS = ROWS.replace("(h, s))  # CAUSE", "(h.detach(), s.detach()))")
# Episodes that become longer as the policy learns: what a backward needs is kept until then, and no longer.
EPISODES = """
class Policy:
    def __init__(self):
        self.net, self.taken = nn.Linear(4, 2), []
policy = Policy()
optimizer = sgd(policy.net)
for episode in range(40):
    for _ in range(3 + episode):
        policy.taken.append(policy.net(noise(1, 4)).square().mean())
    loss = sum(policy.taken)
    optimizer.CLEAR()
    loss.backward()
    optimizer.step()
    policy.taken.clear()
"""
LISTS = EPISODES.replace("policy.taken.clear()", "policy.taken = []")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    programs = {
        "report": REPORT,
        "detached": DETACHED,
        "last": LAST,
        "mean": MEAN,
        "given": GIVEN,
        "cut": CUT,
        "episodes": EPISODES,
        "lists": LISTS,
        "turns": TURNS,
        "meter": METER,
        "states": STATES,
        "rows": ROWS,
        "rows without graphs": NO_GRAPHS,
    }
    texts = {name: HEAD[request.param] + text.replace("CLEAR()", f"{clear}()") for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-kept-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_one_graph_more_in_each_epoch(runs: dict[str, Run]) -> None:
    message = runs["report"].check_first("graph-kept")["message"]
    assert "each iteration" not in message and "iterations" in message, message


@each
@pytest.mark.parametrize("name", ["detached", "last", "cut", "episodes", "lists", "rows without graphs"])
def test_no_graph_is_kept(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", ["mean", "given", "turns", "meter", "states", "rows"])
def test_the_line_that_gives_the_attribute_its_graph(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("graph-kept")
