"""What is brought up to date behind the step, of tensors whose graph backward has freed, and what begins anew with each
epoch. Witness: the framework's own error, and the order in which the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
Module, noise, join, BatchNorm = nn.Module, torch.randn, torch.cat, nn.BatchNorm1d
def sgd(parameters):
    return torch.optim.SGD(list(parameters), lr=0.01)
def unfreeze(module, free):
    for each in module.parameters():
        each.requires_grad_(free)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Module, noise, join, BatchNorm = nn.Layer, lambda *shape: paddle.randn(shape), paddle.concat, nn.BatchNorm1D
def sgd(parameters):
    return paddle.optimizer.SGD(0.01, parameters=list(parameters))
def unfreeze(module, free):
    for each in module.parameters():
        each.stop_gradient = not free
""",
}

# A moving average of features, behind the step.
BANK = """
class Bank(Module):
    def __init__(self):
        super().__init__()
        self.centre = noise(1, 4)
    def update(self, features):
        mean = (features * features).mean(0, keepdim=True)
        self.centre = 0.9 * self.centre + 0.1 * mean  # CAUSE
    def forward(self, features):
        return (features * self.centre).sum(-1)
net, bank = nn.Linear(3, 4), Bank()
optimizer = sgd(net.parameters())
def fit():
    for step in range(4):
        features = net(noise(8, 3))
        loss = bank(features).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.CLEAR()
        bank.update(features)
fit()
"""

# The statement that builds the parts also trains them: the constructor hands on what it made.
HANDED = """
class Part(Module):
    def __init__(self, support):
        super().__init__()
        self.support, self.body = support, nn.Linear(4, 4)
    def forward(self, x):
        return self.body(x @ self.support)
class Net(Module):
    def __init__(self):
        super().__init__()
        self.source = nn.Linear(4, 4)
        support = self.source(noise(4, 4)).tanh()  # CAUSE
        self.parts = nn.Sequential(Part(support), Part(support))
    def forward(self, x):
        return self.parts(x)
def fit(net):
    optimizer = sgd(net.parameters())
    for step in range(3):
        loss = net(noise(8, 4)).square().mean()
        optimizer.CLEAR()
        loss.backward()
        optimizer.step()
fit(Net())
"""

# A dict that one function fills and another one takes from, several times.
DICT = """
net = nn.Linear(4, 2)
optimizer = sgd(net.parameters())
def collect():
    store = {"x": [], "old": []}
    for _ in range(3):
        x = noise(8, 4)
        store["x"].append(x)
        store["old"].append(net(x).tanh())
    return {key: sum(each) for key, each in store.items()}
def update(batch):
    for _ in range(3):
        ratio = (net(batch["x"]).tanh() - batch["old"]).exp()  # CAUSE
        optimizer.CLEAR()
        ratio.mean().backward()
        optimizer.step()
for step in range(3):
    batch = collect()
    update(batch)
"""

# The same with a list: the last features are kept for the next batch, behind the backward.
QUEUE = """
net = nn.Linear(3, 4)
optimizer = sgd(net.parameters())
class Queue:
    def __init__(self):
        self.last = None
    def push(self, features):
        self.last = (features * features).mean(0)  # CAUSE
queue = Queue()
def step():
    features = net(noise(8, 3))
    loss = features.square().mean()
    if queue.last is not None:
        loss = loss + (features * queue.last).mean()
    loss.backward()
    optimizer.step()
    optimizer.CLEAR()
    queue.push(features)
for _ in range(3):
    step()
"""

# A meter that sums losses with their graphs, and begins anew with each epoch.
METER = """
class Meter:
    def reset(self):
        self.total, self.count = 0.0, 0
    def update(self, value):
        self.total = self.total + value
        self.count += 1
net, meter = nn.Linear(3, 1), Meter()
optimizer = sgd(net.parameters())
def epoch(steps):
    meter.reset()
    for _ in range(steps):
        loss = net(noise(8, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.CLEAR()
        meter.update(loss)  # CAUSE
    print(float(meter.total) > 0, meter.count)
for _ in range(2):
    epoch(28)
"""

# The sum is what is trained on, each time it is full; between, other losses are run back.
LATER = """
actor, critic = nn.Linear(3, 1), nn.Linear(3, 1)
of_actor, of_critic = sgd(actor.parameters()), sgd(critic.parameters())
total = 0.0
for step in range(1, 61):
    x = noise(8, 3)
    loss = critic(x).square().mean()
    loss.backward()
    of_critic.step()
    of_critic.CLEAR()
    total = total + (actor(x) - 1).square().mean() / 20
    if step % 20 == 0:
        total.backward()
        of_actor.step()
        of_actor.CLEAR()
        total = 0.0
"""

# A backbone whose BatchNorm is frozen, then trained: Paddle's running statistics are parameters, and get no gradient.
UNFROZEN = """
body, head = nn.Sequential(nn.Linear(3, 6), BatchNorm(6), nn.ReLU()), nn.Linear(6, 1)
unfreeze(body, False)
optimizer = sgd(head.parameters())
for step in range(12):
    if step == 6:
        unfreeze(body, True)
        optimizer = sgd([*head.parameters(), *body.parameters()])
    loss = (head(body(noise(8, 3))) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.CLEAR()
"""

# A constructor keeps what it computed of parameters.
BUILT = """
class Graph(Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        scores = (self.inner.weight * self.inner.weight).tanh()
        self.adjacent = [scores * scores]  # CAUSE
    def forward(self, x):
        return self.inner(x) @ self.adjacent[0]
net = Graph()
optimizer = sgd(net.parameters())
for _ in range(3):
    loss = net(noise(8, 3)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.CLEAR()
"""

# A state of two parts, which an object keeps as a list of its own; or in a way that the source does not tell.
PARTS = """
class Register:
    def __init__(self):
        self.parts = [noise(8, 4) * 0, noise(8, 4) * 0]
    def swap(self, fresh):
        KEEP
class Net(Module):
    def __init__(self, register):
        super().__init__()
        self.mix, self.read, self.register = nn.Linear(11, 4), nn.Linear(4, 1), register
    def forward(self, x):
        fast, slow = self.register.parts
        fast = self.mix(join([x, fast, slow], 1)).tanh()
        slow = 0.9 * slow + 0.1 * fast
        self.register.swap((fast, slow))
        return self.read(slow)
net = Net(Register())
optimizer = sgd(net.parameters())
for step in range(5):
    loss = net(noise(8, 3)).square().mean()
    optimizer.CLEAR()
    loss.backward()
    optimizer.step()
"""
LISTED = PARTS.replace("KEEP", "self.parts = list(fresh)  # CAUSE")
HIDDEN = PARTS.replace("KEEP", "vars(self).update(parts=list(fresh))")
APART = PARTS.replace("KEEP", "self.parts = [each.detach() for each in fresh]")
# The parts as they were go into a history, as numbers; what is kept beside that has no graph.
COPIED = PARTS.replace("KEEP", "self.parts = list(map(lambda each: each.detach() * 1.0, fresh))").replace(
    "swap((fast, slow))", "swap([fast, slow]); self.register.last = tuple([float(slow.sum())])"
)

BUGGY = {
    "built": (BUILT, "second-backward"), "bank": (BANK, "second-backward"), "queue": (QUEUE, "second-backward"),
    "meter": (METER, "graph-kept"), "listed": (LISTED, "second-backward"), "handed": (HANDED, "second-backward"),
    "a dict": (DICT, "second-backward"),
}  # fmt: skip
HEALTHY = {"later": LATER, "unfrozen": UNFROZEN, "apart": APART, "copied": COPIED}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    programs = {name: text for name, (text, _) in BUGGY.items()} | HEALTHY | {"hidden": HIDDEN}
    texts = {name: HEAD[request.param] + text.replace("CLEAR()", f"{clear}()") for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-carried-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_keeps_the_graph(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(BUGGY[name][1])


@each
def test_what_is_kept_unseen_is_named_where_it_was_made(runs: dict[str, Run]) -> None:
    """And not the loss, which nothing takes again."""
    first = runs["hidden"].check_first("second-backward")
    assert first["cause"]["text"].startswith(("fast = ", "slow = ")) and "'loss'" not in first["message"], first


@each
def test_the_last_graph_is_not_said_to_be_of_before_backward(runs: dict[str, Run]) -> None:
    told = " ".join(runs["bank"].above_notes()[0]["evidence"])
    assert "after backward 1, of what that had freed" in told, told


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_programs(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
