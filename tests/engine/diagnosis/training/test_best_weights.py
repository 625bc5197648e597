"""The best weights of a training, restored at its end: what was kept is the weights themselves, and what is a copy.
Witness: whether loading changes anything, as the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import copy
import torch as framework
from torch import nn
framework.manual_seed(0)
Module = nn.Module
def noise(*shape):
    return framework.randn(*shape)
def adam(net):
    return framework.optim.Adam(net.parameters(), 0.01), "zero_grad"
def load(net, state):
    net.load_state_dict(state)
""",
    "paddle": """
import copy
import paddle as framework
from paddle import nn
framework.seed(0)
Module = nn.Layer
def noise(*shape):
    return framework.randn(shape)
def adam(net):
    return framework.optimizer.Adam(0.01, parameters=net.parameters()), "clear_grad"
def load(net, state):
    net.set_state_dict(state)
""",
}
COMMON = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer, clear = adam(net)
def epoch():
    for _ in range(7):
        loss = (net(noise(6, 4)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        getattr(optimizer, clear)()
def of(net):
    return [float(each.sum()) for each in net.parameters()]
"""
KEEPER = COMMON + """
class Keeper:
    def __init__(self):
        self.best, self.state = 1e9, None
    def update(self, value):
        if value < self.best:
            self.best = value
            self.state = KEPT
    def restore(self):
        net.LOAD(self.state)
keeper = Keeper()
for number in range(6):
    epoch()
    keeper.update(number % 3)
before = of(net)
keeper.restore()
print("same", before == of(net))
"""  # fmt: skip
VARIABLE = COMMON + """
def train():
    best = None
    for number in range(6):
        epoch()
        if number == 1:
            best = KEPT
    before = of(net)
    net.LOAD(best)
    print("same", before == of(net))
train()
"""  # fmt: skip
ITSELF, CAUSE = "net.state_dict()", "  # CAUSE"
ITEMS = "{name: value for name, value in net.state_dict().items()}"
BUGGY = {
    "an attribute": KEEPER.replace("KEPT", ITSELF + CAUSE),
    "a variable": VARIABLE.replace("KEPT", ITSELF + CAUSE),
    "its items": KEEPER.replace("KEPT", ITEMS + CAUSE),
}
OTHER = COMMON + """
twin = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
for number in range(6):
    epoch()
    state = net.state_dict()
    twin.LOAD(state)
print("same", of(twin) == of(net))
"""  # fmt: skip
HEALTHY = {
    "a deep copy": KEEPER.replace("KEPT", f"copy.deepcopy({ITSELF})"),
    "clones": VARIABLE.replace("KEPT", ITEMS.replace("value for", "value.clone() for")),
    "another network": OTHER,
    "before a step": COMMON + "state = net.state_dict()\nnet.LOAD(state)\nepoch()\nepoch()\n",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    load = {"torch": "load_state_dict", "paddle": "set_state_dict"}[request.param]
    texts = {name: HEAD[request.param] + text.replace("LOAD", load) for name, text in {**BUGGY, **HEALTHY}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-best-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_what_is_kept_is_the_weights_themselves(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("silent-overwrite")
    assert found["severity"] == "error" and "from its own memory" in found["message"], found
    assert runs[name].plain.startswith("same True"), "nothing is loaded"


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_copies_and_other_networks(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
