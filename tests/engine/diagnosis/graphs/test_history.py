"""A state that is carried from window to window with its graph, where retain_graph=True keeps backward from saying so:
each backward runs through all of it. Witness: the nodes from the last loss on, as the program counts them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
Module, noise, tanh, clear = nn.Module, torch.randn, torch.tanh, "zero_grad"
def zeros(*sizes):
    return torch.zeros(sizes)
def sgd(parameters):
    return torch.optim.SGD(list(parameters), 1e-3)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Module, noise, tanh, clear = nn.Layer, lambda *sizes: paddle.randn(sizes), paddle.tanh, "clear_grad"
def zeros(*sizes):
    return paddle.zeros(sizes)
def sgd(parameters):
    return paddle.optimizer.SGD(1e-3, parameters=list(parameters))
""",
}
# torch says where a step has changed a weight that the history still needs: here it needs none.
BUGS = {
    "in a variable of the loop": """
class Leaky(Module):
    def __init__(self):
        super().__init__()
        self.inp, self.body, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x, state):
        state = tanh(0.5 * state + self.inp(x))
        return self.out(tanh(self.body(state))).square().mean(), state

def train(net, optimizer):
    state = zeros(4, 6)
    for window in range(24):
        loss, state = net(noise(4, 3), state)  # CAUSE
        loss.backward(retain_graph=True)
        optimizer.step()
        getattr(optimizer, clear)()
net = Leaky()
train(net, sgd(net.parameters()))
""",
    "in an attribute of the module": """
class Memory(Module):
    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(3, 5), nn.Linear(5, 2)
        self.kept = None
    def forward(self, x):
        seen = tanh(self.read(x))
        self.kept = seen if self.kept is None else self.kept * 0.8 + seen  # CAUSE
        return self.write(self.kept)
net = Memory()
optimizer = sgd(net.parameters())
for chunk in noise(20, 4, 3):
    getattr(optimizer, clear)()
    loss = (net(chunk) - 1).abs().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
""",
    "of two parts, a few windows a pass": """
class Filter(Module):
    def __init__(self):
        super().__init__()
        self.gate, self.inp, self.out = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 1)
    def forward(self, chunk, state):
        level, trend = state
        for x in chunk:
            trend = 0.7 * trend + 0.3 * self.gate(x)
            level = level + trend * tanh(self.inp(x))
        return self.out(level), (level, trend)
net = Filter()
optimizer = sgd(net.parameters())
for epoch in range(2):
    state = zeros(2, 4), zeros(2, 4)
    for number in range(6):
        out, state = net(noise(3, 2, 3), state)  # CAUSE
        loss = (out - 0.1).square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        getattr(optimizer, clear)()
""",
}
CELL = """
class Recurrent(Module):
    def __init__(self):
        super().__init__()
        self.inp, self.back, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, chunk, state):
        for x in chunk:
            state = tanh(self.inp(x) + self.back(state))
        return self.out(state), state
net = Recurrent()
optimizer = sgd(net.parameters())
"""
HEALTHY = {
    "two losses over one graph": CELL
    + """
for window in range(12):
    out, _ = net(noise(5, 4, 3), zeros(4, 6))
    getattr(optimizer, clear)()
    out.square().mean().backward(retain_graph=True)
    out.abs().mean().backward()
    optimizer.step()
""",
    "detached, and kept for a second loss": CELL
    + """
state = zeros(4, 6)
for window in range(12):
    out, state = net(noise(5, 4, 3), state.detach())
    getattr(optimizer, clear)()
    out.square().mean().backward(retain_graph=True)
    (out - 1).abs().mean().backward()
    optimizer.step()
""",
    "a sum over windows": CELL
    + """
for sequence in range(10):
    state, total = zeros(4, 6), 0.0
    for window in range(4):
        out, state = net(noise(5, 4, 3), state)
        total = total + out.square().mean()
    getattr(optimizer, clear)()
    total.backward()
    optimizer.step()
""",
    "longer and longer sequences": CELL
    + """
def step(length):
    out, _ = net(noise(length, 4, 3), zeros(4, 6))
    getattr(optimizer, clear)()
    out.square().mean().backward()
    optimizer.step()
for length in range(4, 24):
    step(length)
""",
}
PROGRAMS = BUGS | HEALTHY


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-history-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGS)
def test_the_line_that_carries_it(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("graph-grows")
    assert "nodes per backward: " in found["evidence"][0], found
    assert [each["kind"] for each in runs[name].above_notes()] == ["graph-grows"], str(runs[name])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_look_alikes(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
