"""A Parameter made of what was computed, which cuts the graph; and Parameters that cut nothing."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import copy, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
noise, zeros, Module = torch.randn, torch.zeros, nn.Module
def sgd(module):
    return torch.optim.SGD(module.parameters(), 0.05)
def clear(opt):
    opt.zero_grad()
""",
    "paddle": """
import copy, paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.base.framework import EagerParamBase
paddle.seed(0)
noise, zeros, Module = lambda *shape: paddle.randn(shape), lambda *shape: paddle.zeros(shape), nn.Layer
def sgd(module):
    return paddle.optimizer.SGD(0.05, parameters=module.parameters())
def clear(opt):
    opt.clear_grad()
""",
}
LOOP = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.make, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
INIT
    def forward(self, x):
FORWARD
net = Net()
opt = sgd(net)
for step in range(4):
    x = noise(6, 4)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    opt.step()
    clear(opt)
"""


def program(forward: str, init: str = "") -> str:
    texts = {name: "\n".join(" " * 8 + line for line in text.strip().splitlines())
             for name, text in (("INIT", init), ("FORWARD", forward))}  # fmt: skip
    return LOOP.replace("INIT", texts["INIT"]).replace("FORWARD", texts["FORWARD"])


BUGGY = {
    "attribute": program("""
shift = self.make(x).mean(0)
self.shift = nn.Parameter(shift)  # CAUSE
return self.last(F.relu(x) + self.shift)
"""),
    # No module holds it.
    "gates": program("""
kept = []
for row in self.make(x).exp():
    kept.append(nn.Parameter(row * 0.5))  # CAUSE
return self.last(x * sum(kept) / len(kept))
"""),
    "subclass": program("""
class Fast(nn.Parameter):
    pass
scale = Fast(self.make(x).tanh())  # CAUSE
return self.last(scale * x)
"""),
}
TENSOR = BUGGY["attribute"].replace("nn.Parameter(shift)", "EagerParamBase.from_tensor(shift)")

# Derivatives by the input reach the parameters and give them nothing; what is made a leaf is of the values.
TERMS = """
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.05)
for step in range(12):
    x = torch.rand(6, 2, requires_grad=True)
    slope = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
    terms = [slope.square().mean(), net(torch.rand(6, 2)).square().mean()]
    JOINED
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
# What is trained is a copy.
COPIED = """
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.05)
def adapted(net):
    learner = copy.deepcopy(net)  # CAUSE
    grads = torch.autograd.grad(learner(torch.rand(6, 2)).square().mean(), learner.parameters())
    with torch.no_grad():
        for each, grad in zip(learner.parameters(), grads):
            each -= 0.1 * grad
    return learner
for step in range(12):
    opt.zero_grad()
    adapted(net)(torch.rand(6, 2)).square().mean().backward()
    opt.step()
"""
# Stepped by hand of what grad() gives.
BY_HAND = """
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
for step in range(12):
    loss = net(torch.rand(6, 2)).square().mean()
    grads = torch.autograd.grad(loss, list(net.parameters()))
    with torch.no_grad():
        for each, grad in zip(net.parameters(), grads):
            each -= 0.1 * grad
"""
TORCH = {
    "terms": TERMS.replace("JOINED", "loss = torch.tensor(terms, requires_grad=True).sum()  # CAUSE"),
    "copied": COPIED,
    "terms, stacked": TERMS.replace("JOINED", "loss = torch.stack(terms).sum()"),
    "by hand": BY_HAND,
}

HEALTHY = {
    "values": program(
        """
return self.last(self.twin(F.relu(self.make(x) * self.scale + self.shift)) + self.same.sum())
""",
        """
self.scale, self.shift = nn.Parameter(zeros(4) + 1), nn.Parameter(noise(4))
self.twin = copy.deepcopy(self.make)
self.twin.weight = nn.Parameter(self.make.weight.detach().clone())
self.same = nn.Parameter(self.last.weight.detach() * 2)
""",
    ),
    # What it starts as is computed of a parameter, which is trained as well.
    "start": program(
        """
return self.last(F.relu(self.make(x)) * self.norm)
""",
        """
self.norm = nn.Parameter((self.make.weight * self.make.weight).sum(0).sqrt())
""",
    ),
    "tied": program(
        """
return self.last(F.relu(self.make(self.other(x))))
""",
        """
self.other = nn.Linear(4, 4)
self.other.weight = self.make.weight
""",
    ),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    programs = BUGGY | HEALTHY | ({"tensor": TENSOR} if framework == "paddle" else TORCH)
    texts = {name: HEAD[framework] + text for name, text in programs.items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-leaves-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_parameter_of_what_was_computed(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("no-gradient")
    assert first["severity"] == "error" and "a leaf of its own" in first["message"], first


@pytest.mark.parametrize("runs", [case("paddle", "paddle", group="graphs-leaves-paddle")], indirect=True)
def test_one_that_shares_a_tensor(runs: dict[str, Run]) -> None:
    assert "a leaf of its own" in runs["tensor"].check_first("no-gradient")["message"]


@pytest.mark.parametrize("runs", [case("torch", "torch", group="graphs-leaves-torch")], indirect=True)
@pytest.mark.parametrize("name", TORCH)
def test_derivatives_by_the_input_and_copies(runs: dict[str, Run], name: str) -> None:
    if "CAUSE" in TORCH[name]:
        first = runs[name].check_first("no-gradient")
        assert name != "copied" or "deep copy" in first["message"], first
    else:
        runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_a_parameter_that_cuts_nothing(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
