"""What is kept where no backward comes any more: a model that was trained is used outside of ``no_grad``."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
noise, joined = framework.randn, framework.cat
def sgd(module):
    return framework.optim.SGD(module.parameters(), 0.05)
def zeros(*shape):
    return framework.zeros(*shape)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
noise, joined = lambda *shape: framework.randn(shape), framework.concat
def sgd(module):
    return framework.optimizer.SGD(0.05, parameters=module.parameters())
def zeros(*shape):
    return framework.zeros(shape)
""",
}
CELL = """
class Module(nn.MODULE):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x, h):
        h = framework.tanh(self.a(x) + self.b(h))
        return self.out(h), h
net = Module()
optimizer = sgd(net)
for step in range(6):
    h = zeros(2, 4)
    for _ in range(5):
        y, h = net(noise(2, 3), h)
    loss = (y - 1).square().mean()
    optimizer.CLEAR()
    loss.backward()
    optimizer.step()
net.eval()
"""
# A state that an object feeds back, as a stream is followed.
STREAM = (
    CELL
    + """
class Monitor:
    def __init__(self, net):
        self.net, self.state = net, zeros(1, 4)
    def reset(self):
        self.state = zeros(1, 4)
    def push(self, x):
        y, self.state = self.net(x, self.state)  # CAUSE
        return float(y.sum())
monitor = Monitor(net)
seen = [monitor.push(noise(1, 3)) for _ in range(100)]
"""
)
NO_GRAD = STREAM.replace("    def push", "    @framework.no_grad()\n    def push").replace("  # CAUSE", "")
DETACHED = STREAM.replace(
    "        return float(y.sum())", "        self.state = self.state.detach()\n        return float(y.sum())"
).replace("  # CAUSE", "")
RESET = STREAM.replace(
    "seen = [monitor.push(noise(1, 3)) for _ in range(100)]",
    "for _ in range(10):\n    monitor.reset()\n    seen = [monitor.push(noise(1, 3)) for _ in range(20)]",
).replace("  # CAUSE", "")
# An average of drifts, each of a rollout with backwards of its own: more nodes by far than are looked at.
ROLLOUT = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = sgd(net)
class Meter:
    def __init__(self):
        self.value = 0.0
    def update(self, x):
        self.value = 0.9 * self.value + 0.1 * x
def field(z):
    z = z.detach()
    z.FLAG
    return framework.GRAD(net(z).square().sum(), z, create_graph=True)[0]
meter = Meter()
for step in range(150):
    loss = field(noise(8, 4)).square().mean()
    optimizer.CLEAR()
    loss.backward()
    optimizer.step()
    z = noise(8, 4)
    for _ in range(6):
        z = z + 0.1 * field(z)
    meter.update(z.square().mean()DETACH)  # CAUSE
"""
# A list of outputs, in a function that has returned by the end; as long as training takes, or many times that.
SCORES = """
net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = sgd(net)
def evaluate(batches):
    scores = []
    for _ in range(batches):
        score = net(noise(8, 4))
        scores.append(score)  # CAUSE
    return float(joined(scores).mean())
def main():
    for _ in range(20):
        optimizer.CLEAR()
        net(noise(8, 4)).square().mean().backward()
        optimizer.step()
    print(evaluate(60))
main()
"""
FEW = SCORES.replace("evaluate(60)", "evaluate(12)").replace("  # CAUSE", "")
NUMBERS = SCORES.replace("scores.append(score)  # CAUSE", "scores.append(score.detach())")
# A sum, and the outputs by the name of their batch, in an attribute.
TOTAL = (
    SCORES.replace("    scores = []\n", "    total = zeros(1)\n")
    .replace("scores.append(score)  # CAUSE", "total = total + score.mean()  # CAUSE")
    .replace("float(joined(scores).mean())", "float(total.sum())")
    .replace("evaluate(60)", "evaluate(200)")
)
TABLE = """
class Trainer:
    def __init__(self):
        self.net, self.outputs = nn.Linear(4, 2), {}
        self.optimizer = sgd(self.net)
    def fit(self):
        for _ in range(10):
            self.optimizer.CLEAR()
            self.net(noise(8, 4)).square().mean().backward()
            self.optimizer.step()
    def test(self):
        for number in range(50):
            self.outputs[f"batch {number}"] = self.net(noise(8, 4))  # CAUSE
def main():
    trainer = Trainer()
    trainer.fit()
    trainer.test()
main()
"""
# Nothing is trained at all: a state that lies in the module.
INSIDE = """
class Integrator(nn.MODULE):
    def __init__(self):
        super().__init__()
        self.step, self.at = nn.Linear(4, 4), zeros(1, 4)
    def forward(self):
        self.at = self.at + 0.1 * framework.tanh(self.step(self.at))  # CAUSE
        return self.at
flow = Integrator()
for _ in range(60):
    where = flow()
print(float(where.sum()))
"""
# A state that has another name while it is made, in a function.
NAMED = (
    CELL
    + """
def roll(steps):
    h = zeros(1, 4)
    for _ in range(steps):
        y, new = net(noise(1, 3), h)
        h = new  # CAUSE
    return y
print(float(roll(150).sum()))
"""
)
SHORT = NAMED.replace("roll(150)", "roll(60)").replace("  # CAUSE", "")
# Inputs that become longer: the graph of the last forward does, too, and no other is there.
LONGER = (
    CELL.replace("net.eval()", "")
    + """
class Whole(nn.MODULE):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.state = cell, None
    def forward(self, rows):
        h = zeros(1, 4)
        for row in rows:
            y, h = self.cell(row, h)
        self.state = h
        return y
whole = Whole(net)
for length in range(1, 60):
    score = whole([noise(1, 3) for _ in range(length)])
"""
)
# Episodes, each of which keeps what it needs for its backward: the last ones are only watched.
EPISODES = """
net = nn.Linear(4, 2)
optimizer = sgd(net)
class Agent:
    def __init__(self):
        self.taken = []
agent = Agent()
def episode(steps):
    agent.taken = []
    for _ in range(steps):
        agent.taken.append(net(noise(1, 4)).square().mean())
for _ in range(6):
    episode(20)
    optimizer.CLEAR()
    sum(agent.taken).backward()
    optimizer.step()
for _ in range(10):
    episode(30)
"""
# One long chain before its only backward, in which the program fails: a backward was due.
FAILS = """
net = nn.Linear(4, 4)
optimizer = sgd(net)
h = zeros(1, 4)
for step in range(150):
    h = framework.tanh(net(h))
raise SystemError("the disk is full")
h.sum().backward()
"""
UNROLLED = FAILS.replace('raise SystemError("the disk is full")\n', "")
# A module that runs once for each of many layers, without one around them.
LAYERS = """
layers = [nn.Linear(4, 4) for _ in range(60)]
x = noise(2, 4)
for layer in layers:
    x = framework.tanh(layer(x))
print(float(x.sum()))
"""
BUGGY = {"stream": STREAM, "scores": SCORES, "total": TOTAL, "table": TABLE, "inside": INSIDE, "named": NAMED}
HEALTHY = {
    "no_grad": NO_GRAD, "detached": DETACHED, "reset": RESET, "few": FEW, "numbers": NUMBERS, "longer": LONGER,
    "rolled": ROLLOUT.replace("DETACH", ".detach()").replace("  # CAUSE", ""), "episodes": EPISODES,
    "unrolled": UNROLLED, "layers": LAYERS, "short": SHORT,
}  # fmt: skip

WORDS = {"torch": ("requires_grad_()", "autograd.grad"), "paddle": ("stop_gradient = False", "grad")}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear, module = ("zero_grad", "Module") if request.param == "torch" else ("clear_grad", "Layer")
    texts = {
        name: HEAD[request.param] + text.replace("CLEAR()", f"{clear}()").replace("nn.MODULE", f"nn.{module}")
        for name, text in {**BUGGY, **HEALTHY, "fails": FAILS, "rollout": ROLLOUT.replace("DETACH", "")}.items()
    }
    words = WORDS[request.param]
    texts = {name: text.replace("FLAG", words[0]).replace("GRAD", words[1]) for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-kept-on-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", list(BUGGY))
def test_the_line_that_keeps_a_graph_of_each_forward(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("graph-kept")
    assert found["severity"] == "warning", found
    assert "no_grad()" in found["message"], found
    assert "no backward has begun" in found["evidence"][1], found


@each
@pytest.mark.parametrize("name", list(HEALTHY))
def test_no_graph_is_kept(runs: dict[str, Run], name: str) -> None:
    assert not runs[name].above_notes(), runs[name]
    told = [each for each in runs[name].every if each["kind"] == "graph-kept"]
    assert len(told) == (name == "short"), runs[name]  # a note


@each
def test_a_backward_may_have_been_due(runs: dict[str, Run]) -> None:
    told = [each for each in runs["fails"].every if each["kind"] == "graph-kept"]
    assert [each["severity"] for each in told] == ["note"], runs["fails"]


@each
def test_a_sum_with_more_nodes_than_are_looked_at(runs: dict[str, Run]) -> None:
    """What was told stays told: the older ones are out of sight, and not gone."""
    assert "meter.value" in runs["rollout"].check_first("graph-kept")["message"], runs["rollout"]
