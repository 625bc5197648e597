"""A part that is replaced after it was trained: while all the rest is frozen, so that nothing that the optimizer holds
has a gradient any more; or while the rest is trained on, and nothing clears what the old part got last. Witness: the
weights that the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
Module, noise = nn.Module, torch.randn
def sgd(parameters):
    return torch.optim.SGD(list(parameters), lr=0.05, momentum=0.9)
def freeze(module):
    module.requires_grad_(False)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Module, noise = nn.Layer, lambda *shape: paddle.randn(shape)
def sgd(parameters):
    return paddle.optimizer.Momentum(0.05, 0.9, parameters=list(parameters))
def freeze(module):
    for each in module.parameters():
        each.stop_gradient = True
""",
}

MADE = {
    "torch": "torch.optim.SGD(net.parameters(), lr=0.05)",
    "paddle": "paddle.optimizer.SGD(0.05, parameters=net.parameters())",
}
GROWN = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
optimizer = sgd(net.parameters())
def fit(steps):
    for _ in range(steps):
        loss = (net(noise(8, 4)) - 1).square().mean()
        optimizer.CLEAR()
        loss.backward()
        optimizer.step()
fit(30)
net.head = nn.Linear(6, WIDTH)  # CAUSE
freeze(net.body)
REMADE
before = float(net.head.weight.sum())
fit(30)
print("moved", float(net.head.weight.sum()) != before)
"""
# By a method that knows of no optimizer: the line that calls it is the one behind which another is due.
METHOD = GROWN.replace(
    "    def forward", "    def grow(self, width):\n        self.head = nn.Linear(6, width)\n    def forward"
)  # fmt: skip
CALLED = METHOD.replace("net.head = nn.Linear(6, WIDTH)", "net.grow(4)").replace("REMADE", "")
# Before the first step another order is enough.
EARLY = CALLED.replace("fit(30)\nnet.grow(4)  # CAUSE", "net.grow(4)").replace(
    "optimizer = sgd(net.parameters())", "optimizer = TORCH_OR_PADDLE  # CAUSE"
)  # fmt: skip
# Each phase replaces the part that the one before was to train, and nothing of it is left at the end. The module is
# cleared, and so the gradients that the old part got last stay.
PHASES = """
class Coder(Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 3))
        self.between = nn.Linear(6, 6)
    def forward(self, x):
        return self.outer(self.between(self.inner(x)))
    def renew(self):
        self.between = nn.Linear(6, 6)
class Run:
    def __init__(self):
        self.net = Coder()
        self.rule = sgd(self.net.parameters())
        self.moved = []
    def phase(self, steps):
        before = float(self.net.between.weight.sum())
        for _ in range(steps):
            self.net.CLEAR_NET()
            loss = (self.net(noise(8, 4)) - 1).square().mean()
            loss.backward()
            self.rule.step()
        self.moved.append(float(self.net.between.weight.sum()) != before)
    def all(self):
        for number in range(3):
            if number:
                self.net.renew()  # CAUSE
                REMADE
            self.phase(20)
        print("moved", self.moved[1:])
def main():
    Run().all()
main()
"""
# Gradients of the new part alone, before another optimizer takes it: how important each weight is.
IMPORTANCE = """for _ in range(4):
                    (self.net(noise(8, 4)) - 1).square().mean().backward()
                self.rule = sgd(self.net.parameters())"""
PROBE = """probe = nn.Linear(6, 3)
                for _ in range(4):
                    print("probe", float((probe(self.net.inner(noise(8, 4)).detach()) - 1).square().mean()) > 0)
                self.rule = sgd(self.net.parameters())"""
PROGRAMS = {
    "phases": PHASES.replace("REMADE", ""),
    "importance": PHASES.replace("REMADE", IMPORTANCE),
    "probe": PHASES.replace("REMADE", PROBE),
    "wider": GROWN.replace("WIDTH", "4").replace("REMADE", ""),
    "as wide": GROWN.replace("WIDTH", "2").replace("REMADE", ""),
    "called": CALLED,
    "early": EARLY,
    "remade": GROWN.replace("WIDTH", "4").replace("REMADE", "optimizer = sgd(net.head.parameters())"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear, net = ("zero_grad", "zero_grad") if request.param == "torch" else ("clear_grad", "clear_gradients")
    programs = {name: text.replace("TORCH_OR_PADDLE", MADE[request.param]) for name, text in PROGRAMS.items()}
    cleared = {name: text.replace("CLEAR()", f"{clear}()").replace("CLEAR_NET", net) for name, text in programs.items()}
    texts = {name: HEAD[request.param] + text for name, text in cleared.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-replaced-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", ["wider", "as wide", "called", "early"])
def test_the_old_one_is_stepped(runs: dict[str, Run], name: str) -> None:
    assert "moved False" in runs[name].plain, "it is as the program says"
    message = runs[name].check_first("stale-parameters")["message"]
    assert ("had trained" in message) == (name != "early"), message


@each
def test_every_phase_has_a_part_of_its_own(runs: dict[str, Run]) -> None:
    assert "moved [False, False]" in runs["phases"].plain, "it is as the program says"
    assert "had trained" in runs["phases"].check_first("stale-parameters")["message"]


@each
@pytest.mark.parametrize("name", ["importance", "probe"])
def test_each_phase_makes_an_optimizer(runs: dict[str, Run], name: str) -> None:
    assert "moved [True, True]" in runs[name].plain
    runs[name].check_healthy()


@each
def test_a_new_optimizer_holds_the_new_one(runs: dict[str, Run]) -> None:
    assert "moved True" in runs["remade"].plain
    runs["remade"].check_healthy()
