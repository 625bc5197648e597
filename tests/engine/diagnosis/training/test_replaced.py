"""A part that is replaced after it was trained, while all the rest is frozen: nothing that the optimizer holds has a
gradient any more. Witness: the weights that the program prints."""

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
clip = nn.utils.clip_grad_norm_
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
clip = nn.utils.clip_grad_norm_
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
# Behind the iterations that are looked at closely, in a function whose model is gone at the end; several times over.
GONE = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
    def grow(self, more):
        old = self.head
        self.head = nn.Linear(6, old.bias.shape[0] + more)
    def forward(self, x):
        return self.head(self.body(x).tanh())
class Stages:
    def __init__(self, lengths):
        self.net, self.lengths = Net(), lengths
        self.optimizer = sgd(self.net.parameters())
    def run(self):
        for stage, length in enumerate(self.lengths):
            if stage:
                self.net.grow(2)  # CAUSE
            before = float(self.net.head.weight.sum())
            for _ in range(length):
                loss = (self.net(noise(8, 4)) - 1).square().mean()
                self.optimizer.CLEAR()
                loss.backward()
                clip(self.net.parameters(), 2.0)
                self.optimizer.step()
            print("moved", float(self.net.head.weight.sum()) != before)
Stages(LENGTHS).run()
"""
KEPT = GONE.replace("CAUSE", "and the optimizer with it").replace(
    "self.net.grow(2)", "self.net.grow(2); self.optimizer = sgd(self.net.parameters())"
)  # fmt: skip
# The model lives on as the program ends, and what held the old head is gone.
RETURNED = (
    GROWN[: GROWN.index("optimizer =")]
    + """
def tune(net):
    optimizer = TORCH_OR_PADDLE  # CAUSE
    net.head = nn.Linear(6, 4)
    before = float(net.head.weight.sum())
    for _ in range(60):
        loss = (net(noise(8, 4)) - 1).square().mean()
        optimizer.CLEAR()
        loss.backward()
        optimizer.step()
    print("moved", float(net.head.weight.sum()) != before)
tune(net)
"""
)
# The optimizer of the stage before is gone, and held the old head too.
TUNED = (
    GROWN[: GROWN.index("optimizer =")]
    + """
def fit(optimizer, steps):
    for _ in range(steps):
        loss = (net(noise(8, 4)) - 1).square().mean()
        optimizer.CLEAR()
        loss.backward()
        optimizer.step()
def pretrain():
    fit(sgd(net.parameters()), 40)
pretrain()
freeze(net.body)
optimizer = TORCH_OR_PADDLE  # CAUSE
net.head = nn.Linear(6, 4)
before = float(net.head.weight.sum())
fit(optimizer, 40)
print("moved", float(net.head.weight.sum()) != before)
"""
)
# A class makes optimizers for whatever it is given: its line is right, what is replaced after it is late.
SESSION = (
    GROWN[: GROWN.index("net = Net()")]
    + """
    def widen(self):
        self.head = nn.Linear(6, 4)
class Session:
    def __init__(self, model):
        self.model = model
        self.optimizer = sgd([each for each in model.parameters() if not getattr(each, "stop_gradient", False)])
    def fit(self, steps):
        for _ in range(steps):
            loss = (self.model(noise(8, 4)) - 1).square().mean()
            self.optimizer.CLEAR()
            loss.backward()
            self.optimizer.step()
def main():
    net = Net()
    Session(net).fit(40)
    freeze(net.body)
    session = Session(net)
    net.widen()  # CAUSE
    before = float(net.head.weight.sum())
    session.fit(40)
    print("moved", float(net.head.weight.sum()) != before)
main()
"""
)
PROGRAMS = {
    "session": SESSION,
    "returned": RETURNED,
    "tuned": TUNED,
    "in stages": GONE.replace("LENGTHS", "[120, 120, 120]"),
    "late and short": GONE.replace("LENGTHS", "[150, 30]"),
    "stages with optimizers": KEPT.replace("LENGTHS", "[120, 120, 120]"),
    # A part that comes and goes is no part that is trained.
    "parts that go": KEPT.replace("LENGTHS", "[150]").replace(
        "loss = (self.net(", "self.net.extra = nn.Linear(4, 4)\n                loss = (self.net("
    ),
    "wider": GROWN.replace("WIDTH", "4").replace("REMADE", ""),
    "as wide": GROWN.replace("WIDTH", "2").replace("REMADE", ""),
    "called": CALLED,
    "early": EARLY,
    "remade": GROWN.replace("WIDTH", "4").replace("REMADE", "optimizer = sgd(net.head.parameters())"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    programs = {name: text.replace("TORCH_OR_PADDLE", MADE[request.param]) for name, text in PROGRAMS.items()}
    texts = {name: HEAD[request.param] + text.replace("CLEAR()", f"{clear}()") for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-replaced-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize(
    "name", ["wider", "as wide", "called", "early", "in stages", "late and short", "returned", "tuned", "session"]
)
def test_the_old_one_is_stepped(runs: dict[str, Run], name: str) -> None:
    assert "moved False" in runs[name].plain, "it is as the program says"
    message = runs[name].check_first("stale-parameters")["message"]
    assert ("had trained" in message) == (name not in ("early", "returned", "tuned", "session")), message


@each
def test_a_new_optimizer_holds_the_new_one(runs: dict[str, Run]) -> None:
    assert "moved True" in runs["remade"].plain
    runs["remade"].check_healthy()


@each
@pytest.mark.parametrize("name", ["stages with optimizers", "parts that go"])
def test_what_is_replaced_with_its_optimizer(runs: dict[str, Run], name: str) -> None:
    assert "moved False" not in runs[name].plain
    runs[name].check_healthy()
