"""A branch that leaves a step out leaves the clearing out, too: gradients add up from then on. Witness: how many steps
there were, which the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import math
import torch as fw
from torch import nn
fw.manual_seed(0)
noise = fw.randn
def made(net):
    return fw.optim.SGD(net.parameters(), lr=0.01)
""",
    "paddle": """
import math
import paddle as fw
from paddle import nn
fw.seed(0)
noise = lambda *shape: fw.randn(shape)
def made(net):
    return fw.optimizer.SGD(0.01, parameters=net.parameters())
""",
}
NET = """
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer, steps = made(net), 0
def norm_of(net):
    return math.sqrt(sum(float(each.grad.square().sum()) for each in net.parameters()))
def batch(number):
    x = noise(8, 4)
    return x, x[:, :1] * (1000 if number == 9 else 1)
def loss_of(x, y):
    return (net(x) - y).square().mean()
"""
SHOWN = """
print(steps, "steps")
"""
RETURNS = """
def one(x, y):
    global steps
    loss_of(x, y).backward()
    if norm_of(net) > 100:
        return
    optimizer.step()
    steps += 1
    optimizer.CLEAR()MARK
for number in range(40):
    one(*batch(number))
"""
CONTINUES = """
for number in range(40):
    x, y = batch(number)
    loss = loss_of(x, y)
    loss.backward()
    if not norm_of(net) < 100:
        print("too large")
        continue
    optimizer.step()
    optimizer.CLEAR()MARK
    steps += 1
"""
# Two batches a step.
TRAINER = """
class Trainer:
    def __init__(self):
        self.lost = 0
    def update(self):
        global steps
        if norm_of(net) > 100:
            self.lost += 1
            return False
        optimizer.step()
        steps += 1
        for each in (optimizer,):
            each.CLEAR()MARK
        return True
    def fit(self, batches):
        for number in range(batches):
            (loss_of(*batch(number)) / 2).backward()
            if number % 2 == 1:
                self.update()
Trainer().fit(60)
"""
MARK = "  # CAUSE"
BUGGY = {"returns": RETURNS, "continues": CONTINUES, "a trainer": TRAINER}
FISHER = """
for number in range(30):
    loss_of(*batch(0)).backward()
print("importance", [float(((each.grad / 30) ** 2).sum()) for each in net.parameters()])
"""
CLEARED = RETURNS.replace("        return\n", "        optimizer.CLEAR()\n        return\n")
# One function of the program's runs all backwards.
BACKWARD = "loss_of(x, y).backward()"
RUN = f"""
def run(x, y):
    {BACKWARD}
"""
HEALTHY = {
    "cleared there, too": CLEARED,
    "for something else": CLEARED + FISHER,
    "eight micro-batches": """
for number in range(240):
    x, y = batch(0)
    (loss_of(x, y) / 8).backward()
    if number % 8 == 7:
        optimizer.step()
        optimizer.CLEAR()
        steps += 1
""",
    # Training ends within a step's micro-batches.
    "not a whole step": """
for number in range(21 * 8 + 7):
    x, y = batch(0)
    (loss_of(x, y) / 8).backward()
    if number % 8 == 7:
        optimizer.step()
        optimizer.CLEAR()
        steps += 1
""",
    "for something else, by the same line": RUN + CLEARED.replace(BACKWARD, "run(x, y)")
    + FISHER.replace("loss_of(*batch(0)).backward()", "run(*batch(0))"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    head = HEAD[request.param] + NET
    texts = {name: head + (text + SHOWN).replace("MARK", MARK) for name, text in BUGGY.items()}
    texts |= {name: head + (text + SHOWN).replace("MARK", "") for name, text in HEALTHY.items()}
    clearing = "zero_grad" if request.param == "torch" else "clear_grad"
    texts = {name: text.replace("CLEAR", clearing) for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-clearing-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_neither_stepped_nor_cleared(runs: dict[str, Run], name: str) -> None:
    assert f"{4 if name == 'a trainer' else 9} steps" in runs[name].plain, runs[name].plain
    first = runs[name].check_first("zero-grad")
    assert first["severity"] == "error" and "add up and nothing is stepped" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_added_up_on_purpose(runs: dict[str, Run], name: str) -> None:
    steps = int(runs[name].plain.partition(" steps")[0].rpartition("\n")[2])
    assert steps in (21, 30, 39), runs[name].plain
    runs[name].check_healthy()
