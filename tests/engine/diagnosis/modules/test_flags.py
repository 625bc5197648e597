"""Flags of parameters that are set on a module. Witness: those of the parameters, which the program prints."""

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
    return torch.optim.SGD(parameters, 0.05)
def clear(optimizer):
    optimizer.zero_grad()
def freeze(parameters):
    for each in parameters:
        each.requires_grad = False
def thaw(parameters):
    for each in parameters:
        each.requires_grad = True
def trained(parameters):
    return [each.requires_grad for each in parameters]
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Module, noise = nn.Layer, lambda *shape: paddle.randn(shape)
def sgd(parameters):
    return paddle.optimizer.SGD(0.05, parameters=parameters)
def clear(optimizer):
    optimizer.clear_grad()
def freeze(parameters):
    for each in parameters:
        each.stop_gradient = True
def thaw(parameters):
    for each in parameters:
        each.stop_gradient = False
def trained(parameters):
    return [not each.stop_gradient for each in parameters]
""",
}
NET = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.head = nn.Linear(6, 1)
        self.tail = nn.Linear(1, 1)
    def forward(self, x):
        return self.tail(self.head(self.body(x)))
net = Net()
"""
FIT = """
print("head", trained(net.head.parameters()), "body", trained(net.body.parameters()))
optimizer = sgd(list(net.parameters()))
for step in range(6):
    loss = (net(noise(8, 4)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear(optimizer)
"""
TRAINS = {"torch": ("requires_grad", "True", "False"), "paddle": ("stop_gradient", "False", "True")}
BUGGY = {
    "a head that stays frozen": "freeze([*net.body.parameters(), *net.head.parameters()])\nnet.head.FLAG = ON  # CAUSE",
    "a body that is trained": "net.body.FLAG = OFF  # CAUSE",
    "by another name": "body = net.body\nbody.FLAG = OFF  # CAUSE",
}
HEALTHY = {
    "the parameters, too": "net.body.FLAG = OFF\nfreeze(net.body.parameters())",
    "a head that is thawed": "net.FLAG = OFF\nfreeze(net.parameters())\nthaw(net.head.parameters())",
    "none": "freeze(net.body.parameters())",
}
OWN = NET.replace("        super().__init__()\n", "        super().__init__()\n        self.FLAG = ON\n")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    flag, on, off = TRAINS[request.param]
    texts = {name: NET + text + FIT for name, text in (BUGGY | HEALTHY).items()} | {"own": OWN + "net.FLAG = OFF" + FIT}
    texts = {name: text.replace("FLAG", flag).replace("ON", on).replace("OFF", off) for name, text in texts.items()}
    texts = {name: HEAD[request.param] + text for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize("runs", [case(name, name, group=f"flags-{name}") for name in FRAMEWORKS], indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_it_does_nothing(runs: dict[str, Run], name: str) -> None:
    assert ("head [False, False]" if "head" in name else "body [True, True]") in runs[name].plain
    assert runs[name].check_first("module-flag")["severity"] == "error"


@each
@pytest.mark.parametrize("name", [*HEALTHY, "own"])
def test_what_is_as_it_says(runs: dict[str, Run], name: str) -> None:
    """Or a flag that the class has for itself."""
    assert not [found for found in runs[name].every if found["kind"] == "module-flag"], str(runs[name])
