"""What two backwards share: a state that is carried on, a table made before the loop, what a generator made. Witness of
the advice: the program that follows it runs to its end, and is no finding."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
soft, noise, cell_of = nn.functional.softplus, torch.randn, nn.GRUCell
def go_on(cell, x, h):
    return cell(x, h)
def adam(*modules):
    return torch.optim.Adam([each for module in modules for each in module.parameters()], lr=1e-3)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
soft, noise, cell_of = nn.functional.softplus, lambda *shape: paddle.randn(shape), nn.GRUCell
def go_on(cell, x, h):
    return cell(x, h)[1]
def adam(*modules):
    return paddle.optimizer.Adam(1e-3, parameters=[each for module in modules for each in module.parameters()])
""",
}

# One function, called for two chunks of an iteration.
CARRIED = """
cell, head = cell_of(4, 8), nn.Linear(8, 1)
optimizer = adam(cell, head)
def run(x, h):
    h = go_on(cell, x, h)  # CAUSE
    head(h).square().sum().backward()
    return h
h = noise(8, 8)
for _ in range(4):
    h = run(noise(8, 4), h)
    h = run(noise(8, 4), h)
    optimizer.step()
    optimizer.CLEAR()
"""
CARRIED_ON = CARRIED.replace("x, h)  # CAUSE", "x, h.detach())")
STATE = """
class Trainer:
    def __init__(self):
        self.cell, self.head, self.h = cell_of(4, 8), nn.Linear(8, 1), noise(8, 8)
        self.optimizer = adam(self.cell, self.head)
    def chunk(self, x):
        self.h = go_on(self.cell, x, self.h)  # CAUSE
        self.head(self.h).square().sum().backward()
trainer = Trainer()
for _ in range(4):
    trainer.chunk(noise(8, 4))
    trainer.chunk(noise(8, 4))
    trainer.optimizer.step()
    trainer.optimizer.CLEAR()
"""
STATE_ON = STATE.replace("self.h)  # CAUSE", "self.h.detach())")
# The same without a function.
TWICE = """
cell, head = cell_of(4, 8), nn.Linear(8, 1)
optimizer = adam(cell, head)
h = noise(8, 8)
for _ in range(4):
    h = go_on(cell, noise(8, 4), h)  # CAUSE
    head(h).square().sum().backward()
    h = go_on(cell, noise(8, 4), h)
    head(h).abs().mean().backward()
    optimizer.step()
    optimizer.CLEAR()
"""
TWICE_ON = TWICE.replace("noise(8, 4), h)", "noise(8, 4), h.detach())")

# Computed once: of two losses the first one frees it.
BEFORE = """
table, one, two = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
of_one, of_two = adam(one), adam(two, table)
data = noise(64, 4)
features = table(data).tanh()  # CAUSE
for step in range(4):
    rows = features[step * 8 : step * 8 + 8]
    first, second = one(rows).square().mean(), two(rows).square().mean()
    first.backward()
    second.backward()
    for each in (of_one, of_two):
        each.step()
        each.CLEAR()
"""
DETACHED = BEFORE.replace("tanh()", "tanh().detach()").replace("adam(two, table)", "adam(two)")
ANEW = BEFORE.replace("features = ", "").replace("rows = features[", "rows = table(data).tanh()[").replace(
    "first.backward()\n    second.backward()", "(first + second).backward()"
)  # fmt: skip
ONE_LINE = BEFORE.replace("first.backward()\n    second", "first.backward(); second")
HELPED = BEFORE.replace("data = noise", "def run(loss):\n    loss.backward()\ndata = noise").replace(
    "first.backward()\n    second.backward()", "run(first)\n    run(second)"
)  # fmt: skip

# A critic that reaches into the generator; nothing has stepped in between.
CRITIC = """
generator, critic = nn.Linear(4, 2), nn.Linear(2, 1)
of_generator, of_critic = adam(generator), adam(critic)
for _ in range(4):
    fake = generator(noise(8, 4))
    of_critic.CLEAR()
    real = soft(-critic(noise(8, 2))).mean()
    loss = real + soft(critic(fake)).mean()  # CAUSE
    loss.backward()
    of_generator.CLEAR()
    soft(-critic(fake)).mean().backward()
    of_critic.step()
    of_generator.step()
"""
CRITIC_APART = CRITIC.replace("critic(fake)).mean()  # CAUSE", "critic(fake.detach())).mean()")

# Two heads of a trunk: these do add up.
HEADS = """
trunk, one, two = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
optimizer = adam(trunk, one, two)
for _ in range(4):
    rows = trunk(noise(8, 4)).tanh()
    one(rows).square().mean().backward()  # CAUSE
    two(rows).square().mean().backward()
    optimizer.step()
    optimizer.CLEAR()
"""

# A batch of which one part has a graph, that every step of the update takes.
ROLLOUT = """
net = nn.Linear(4, 1)
optimizer = adam(net)
def collect():
    rows = noise(8, 4)
    return rows, net(rows).tanh()
def update(rows, old):
    for _ in range(2):
        gain = (net(rows) - old).exp()  # CAUSE
        optimizer.CLEAR()
        gain.square().mean().backward()
        optimizer.step()
for _ in range(3):
    batch = collect()
    update(*batch)
"""
ROLLOUT_ON = ROLLOUT.replace("- old)", "- old.detach())")
# What was a tensor already where it was made is detached there.
PLAIN = ROLLOUT.replace("  # CAUSE", "").replace("return rows, net(rows)", "return net(rows)").replace(
    "    batch = collect()\n    update(*batch)",
    "    old = collect()  # CAUSE\n    update(noise(8, 4), old)",
)  # fmt: skip
PLAIN_ON = PLAIN.replace("collect()  #", "collect().detach()  #")

# Of an unpacking only one target has the graph.
UNPACKED = """
net = nn.Linear(4, 1)
optimizer = adam(net)
def collect():
    rows = noise(8, 4)
    return rows, net(rows).tanh(), noise(8)
for _ in range(3):
    rows, old, reward = collect()  # CAUSE
    for _ in range(2):
        loss = (net(rows) * old).square().mean()
        optimizer.CLEAR()
        loss.backward()
        optimizer.step()
"""
NESTED = UNPACKED.replace("return rows, net(rows).tanh(), noise", "return [rows, net(rows).tanh()], noise").replace(
    "rows, old, reward =", "(rows, old), reward ="
)  # fmt: skip
BEHIND = NESTED.replace("collect()  #", "collect(); reward = reward.detach()  #")
ATTRIBUTES = UNPACKED.replace("def collect", "class Buffer: pass\nkept = Buffer()\ndef collect").replace(
    "rows, old, reward = collect()", "rows = noise(8, 4); kept.old, kept.count = net(rows).tanh(), 3"
).replace("* old)", "* kept.old)")  # fmt: skip
# The line has run again since: what it gave the variable is not what joins the graphs.
OTHER = TWICE.replace(
    "    h = go_on(cell, noise(8, 4), h)  # CAUSE", "    h, count = go_on(cell, noise(8, 4), h), 3  # CAUSE"
)
# The trunk's result has the graph that two losses share, the labels have none.
LABELS = """
trunk, one, two = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
optimizer = adam(trunk, one, two)
for _ in range(4):
    rows, labels = trunk(noise(8, 4)).tanh(), noise(8, 1)
    (one(rows) - labels).square().mean().backward()
    (two(rows) - labels).square().mean().backward()
    optimizer.step()
    optimizer.CLEAR()
"""
NAMED = {
    "unpacked": (UNPACKED, "old"), "nested": (NESTED, "old"), "behind": (BEHIND, "old"),
    "attributes": (ATTRIBUTES, "kept.old"), "other": (OTHER, "h"), "labels": (LABELS, "rows"),
}  # fmt: skip

DETACH = {
    "carried": CARRIED, "state": STATE, "twice": TWICE, "before": BEFORE, "one line": ONE_LINE, "helped": HELPED,
    "critic": CRITIC, "rollout": ROLLOUT, "plain": PLAIN,
}  # fmt: skip
FOLLOWED = {
    "carried on": CARRIED_ON, "state on": STATE_ON, "twice on": TWICE_ON, "detached": DETACHED, "anew": ANEW,
    "critic apart": CRITIC_APART, "rollout on": ROLLOUT_ON, "plain on": PLAIN_ON,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    programs = {**DETACH, **FOLLOWED, "heads": HEADS, **{name: text for name, (text, _) in NAMED.items()}}
    texts = {name: HEAD[request.param] + text.replace("CLEAR()", f"{clear}()") for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-shared-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", DETACH)
def test_what_joins_them_is_the_cause(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("second-backward")["message"]
    assert "detach" in message and "retain_graph" not in message and "several losses" not in message, message


@each
@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_has_the_graph(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("second-backward")["message"]
    told = NAMED[name][1]
    assert f"'{told}'" in message and "reward" not in message and "count" not in message, message


@each
@pytest.mark.parametrize("name", FOLLOWED)
def test_the_advice_works(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
    assert "Error" not in runs[name].output, runs[name]


@each
def test_losses_of_one_optimizer_are_added_up(runs: dict[str, Run]) -> None:
    message = runs["heads"].check_first("second-backward")["message"]
    assert "add the losses up" in message and "rows.detach()" in message, message
