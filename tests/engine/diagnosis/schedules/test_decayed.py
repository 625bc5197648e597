"""What ``apply_decay_param_fun`` looks for. Witness: which parameters Paddle's own call of it says are to decay."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import case

HEAD = """
import paddle
from paddle import nn
paddle.seed(0)
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 1)
    def forward(self, x):
        return self.head(paddle.tanh(self.norm(self.body(x))))
net = Net()
"""
FIT = """
asked = {}
step = optimizer._apply_decay_param_fun
for at in range(12):
    loss = (net(paddle.randn([8, 4])) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
print("decay:", sum(bool(step(each.name)) for each in net.parameters()))
"""
ADAMW = "optimizer = paddle.optimizer.AdamW(1e-2, parameters=net.parameters(), weight_decay=0.1, "
BUGGY = {  # and how many Paddle decays
    "a set": ("names = {name for name, each in net.named_parameters() if each.ndim > 1}\n"
              + ADAMW + "\n    apply_decay_param_fun=lambda name: name in names)  # CAUSE\n", 0),
    "a default": ("names = ['body.weight', 'head.weight']\n"
                  + ADAMW + "\n    apply_decay_param_fun=lambda name, names=names: name in names)  # CAUSE\n", 0),
    "a constant": (ADAMW + "\n    apply_decay_param_fun=lambda name: 'bias' not in name)  # CAUSE\n", 6),
    "of two": (ADAMW + "\n    apply_decay_param_fun=lambda n: 'norm' not in n and 'bias' not in n)  # CAUSE\n", 4),
    "a function": ("""
SKIPPED = ("norm.", ".bias")
def decays(name):  # CAUSE
    "All but biases and norms."
    return not any(each in name for each in SKIPPED)
""" + ADAMW + "apply_decay_param_fun=decays)\n", 6),
    "in a function": ("""
def made(net):
    skipped = [name for name, each in net.named_parameters() if each.ndim < 2]
    def decays(name):  # CAUSE
        return not any(name.endswith(each) for each in skipped)
    return paddle.optimizer.AdamW(1e-2, parameters=net.parameters(), apply_decay_param_fun=decays)
optimizer = made(net)
""", 6),
}  # fmt: skip
HEALTHY = {
    "own names": ("names = {each.name for each in net.parameters() if each.ndim > 1}\n"
                  + ADAMW + "apply_decay_param_fun=lambda name: name in names)\n", 2),
    "endings": (ADAMW + "apply_decay_param_fun=lambda name: not name.endswith('.b_0') and 'norm' not in name)\n", 2),
    "both": (ADAMW + "apply_decay_param_fun=lambda name: 'bias' not in name and '.b_' not in name)\n", 3),
    "a table": ("paths = {each.name: name for name, each in net.named_parameters()}\n"
                + ADAMW + "apply_decay_param_fun=lambda name: 'bias' not in paths[name])\n", 3),
    "an object": ("""
class Paths:
    def __init__(self):
        self.paths = {each.name: name for name, each in net.named_parameters()}
    def of(self, name):
        return self.paths[name]
paths = Paths()
""" + ADAMW + "apply_decay_param_fun=lambda name: 'bias' not in paths.of(name))\n", 3),
    "other words": (ADAMW + "apply_decay_param_fun=lambda name: 'embed' not in name)\n", 6),
    "all": (ADAMW + "apply_decay_param_fun=lambda name: True)\n", 6),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD + text + FIT for name, (text, _) in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


paddle = pytest.mark.parametrize("runs", [case("paddle", "paddle", group="decayed-paddle")], indirect=True)


@paddle
@pytest.mark.parametrize("name", BUGGY)
def test_names_that_paddle_does_not_use(runs: dict[str, Run], name: str) -> None:
    assert f"decay: {BUGGY[name][1]}\n" in runs[name].plain
    assert runs[name].check_first("weight-decay")["severity"] == "warning"


@paddle
@pytest.mark.parametrize("name", HEALTHY)
def test_functions_that_find_what_they_look_for(runs: dict[str, Run], name: str) -> None:
    assert f"decay: {HEALTHY[name][1]}\n" in runs[name].plain
    runs[name].check_healthy()
