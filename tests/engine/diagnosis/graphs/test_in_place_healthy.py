"""Operators in place whose own node saves what they made: their result is what backward is to compute with. Witness:
the frameworks' own counters, by which each backward runs."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
noise, clear = torch.randn, "zero_grad"
def sgd(*parts):
    return torch.optim.SGD([each for part in parts for each in part.parameters()], 0.05)
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
noise, clear = lambda *shape: paddle.randn(shape), "clear_grad"
def sgd(*parts):
    return paddle.optimizer.SGD(0.05, parameters=[each for part in parts for each in part.parameters()])
""",
}
# The variable is given another tensor afterwards, so that nobody but the graph has what was written in place.
STEPS = """
first, second = nn.Linear(4, 6), nn.Linear(6, 1)
rule = sgd(first, second)
for step in range(10):
    h = first(noise(8, 4))
    h = CALL
    h = F.dropout(h, 0.3)
    loss = second(h).square().mean()
    getattr(rule, clear)()
    loss.backward()
    rule.step()
"""
CALLS = {
    "torch": ("h.relu_()", "F.relu_(h)", "torch.sigmoid_(h)", "h.tanh_()", "F.elu_(h)", "h.exp_()"),
    "paddle": ("F.relu_(h)", "F.tanh_(h)", "h.sigmoid_()", "h.exp_()"),
}
# Weights are written in place while the module that they are for is made: it has no parts yet.
HALF_MADE = """
def scaled(part):
    for value in part.parameters():
        with NO_GRAD():
            value.multiply_(VALUE)
    return part
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(scaled(nn.Linear(4, 6)), nn.Tanh(), scaled(nn.Linear(6, 1)))
net = Net()
rule = sgd(net)
for step in range(10):
    loss = net(noise(8, 4)).square().mean()
    getattr(rule, clear)()
    loss.backward()
    rule.step()
    print(float(loss))
"""
WORDS = {
    "torch": ("torch.no_grad", "torch.tensor(0.5)"),
    "paddle": ("paddle.no_grad", "paddle.to_tensor(0.5)"),
}
# What is written through ``.data`` is no operator of the graph's: it stays an error.
BUGGY = STEPS.replace("CALL", "h.tanh()\n    h.data.mul_(0.5)  # CAUSE")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {call: HEAD[request.param] + STEPS.replace("CALL", call) for call in CALLS[request.param]}
    without, value = WORDS[request.param]
    texts["half made"] = HEAD[request.param] + HALF_MADE.replace("NO_GRAD", without).replace("VALUE", value)
    if request.param == "torch":
        texts["data"] = HEAD["torch"] + BUGGY
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-in-place-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_a_result_in_place_is_what_its_node_saves(runs: dict[str, Run]) -> None:
    for name in runs.keys() - {"data"}:
        runs[name].check_healthy()


@each
def test_what_is_written_past_the_counter_stays_an_error(runs: dict[str, Run]) -> None:
    for name in runs.keys() & {"data"}:
        assert runs[name].check_first("silent-overwrite")["severity"] == "error"
