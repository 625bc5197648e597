"""What an iteration puts into an attribute, and the next one takes: the line that puts it there is named, for the one
that made it is needed with its graph. Witness: the framework's own error, and that detaching at that line ends it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
noise, stack = torch.randn, torch.stack
def sgd(parameters):
    return torch.optim.SGD(list(parameters), lr=0.01)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
noise, stack = lambda *shape: paddle.randn(shape), paddle.stack
def sgd(parameters):
    return paddle.optimizer.SGD(0.01, parameters=list(parameters))
""",
}
# Two states on one line, of which the carrying method detaches the other one.
STATES = """
cell, out = nn.Linear(3, 4), nn.Linear(4, 1)
class Layer:
    v = s = None
    def carry(self):
        if self.s is not None:
            self.s = self.s.detach()
    def __call__(self, events):
        v = noise(2, 4) if self.v is None else self.v
        s = noise(2, 4) if self.s is None else self.s
        for each in events:
            v = 0.9 * v * (1 - s.detach()) + cell(each)
            s = (v - 1).tanh()
        KEEP
        return s
layer, optimizer = Layer(), sgd([*cell.parameters(), *out.parameters()])
for _ in range(7):
    layer.carry()
    loss = out(layer([noise(2, 3), noise(2, 3)])).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.CLEAR()
"""
# The last two values of each loss, as the weights of the next.
PACE = """
net = nn.Linear(3, 2)
class Balancer:
    def __init__(self):
        self.previous = []
    def combine(self, losses):
        vector = stack(losses)
        weights = 1.0
        if len(self.previous) == 2:
            weights = self.previous[1] / self.previous[0]
        KEEP
        return (weights * vector).sum()
balancer, optimizer = Balancer(), sgd(net.parameters())
for _ in range(4):
    both = net(noise(8, 3)).square().mean(0)
    total = balancer.combine([both[0], both[1]])
    total.backward()
    optimizer.step()
    optimizer.CLEAR()
"""
SLICED = "self.previous = (self.previous + [{}])[-2:]  # CAUSE"
APPENDED = "self.previous.append({})  # CAUSE\n        del self.previous[:-2]"
WRONG = {
    "graph-grows two at once": STATES.replace("KEEP", "self.v, self.s = v, s  # CAUSE"),
    "second-backward sliced": PACE.replace("KEEP", SLICED.format("vector")),
    "second-backward appended": PACE.replace("KEEP", APPENDED.format("vector")),
}
# What a meter is given is a number to it.
METER = PACE.replace(
    "class Balancer",
    """class Meter:
    total = 0.0
    def update(self, values):
        self.total += float(values.detach().sum())
class Balancer""",
).replace("        self.previous = []", "        self.previous, self.meter = [], Meter()")
WRONG["second-backward beside a meter"] = METER.replace(
    "KEEP", "self.previous = (self.previous + [vector])[-2:]  # CAUSE\n        self.meter.update(vector)"
)
RIGHT = {
    "states": STATES.replace("KEEP", "self.v, self.s = v.detach(), s"),
    "sliced": PACE.replace("KEEP", SLICED.format("vector.detach()")),
    "appended": PACE.replace("KEEP", APPENDED.format("vector.detach()")),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    texts = {each: HEAD[request.param] + text.replace("CLEAR", clear) for each, text in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-put-away-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_line_that_puts_it_there(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(name.split()[0])


@each
@pytest.mark.parametrize("name", RIGHT)
def test_detached_there(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
