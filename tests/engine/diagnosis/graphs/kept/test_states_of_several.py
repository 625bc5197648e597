"""A state of several tensors, an attribute, that is given anew with its graph in each iteration: the line that does,
not the one in __init__. Witness: whether it has a graph at the end, which the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
noise, cell_of, Module = fw.randn, nn.LSTMCell, nn.Module
def go_on(cell, x, state):
    return cell(x, state)
def sgd(*modules):
    return fw.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def first_of(state):
    return state[0].grad_fn is not None
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
noise, cell_of, Module = lambda *shape: fw.randn(shape), nn.LSTMCell, nn.Layer
def go_on(cell, x, state):
    return cell(x, state)[1]
def sgd(*modules):
    return fw.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def first_of(state):
    return not state[0].stop_gradient
""",
}
# A memory that is told of what the net gives, and that no loss is computed of.
CELL = """
class Memory(Module):
    def __init__(self):
        super().__init__()
        self.cell = cell_of(4, 8)
        self.state = tuple(noise(8, 8) for _ in range(2))
    def forward(self, rows):
        new = go_on(self.cell, rows, self.state)
        self.state = tuple(KEPT for each in new)MARK
        return self.state[0]
net, memory = nn.Linear(4, 4), Memory()
optimizer = sgd(net)
for _ in range(30):
    rows = net(noise(8, 4))
    memory(rows)
    optimizer.CLEAR()
    net(noise(8, 4)).square().mean().backward()
    optimizer.step()
print("with a graph" if first_of(memory.state) else "without")
"""
# Running figures of a meter, in two methods, which holds other pairs, too.
METER = """
class Meter:
    def __init__(self):
        self.pair, self.state = (0, 0), (fw.zeros([4]), fw.ones([4]))
    def reset(self):
        self.pair = (0, 0)
    def take(self, rows):
        mean, size = self.state
        mean, size = mean * 0.9 + rows.mean(0) * 0.1, size * 0.9 + rows.square().mean(0) * 0.1
        self.state = (KEPT_MEAN, KEPT_SIZE)MARK
        self.pair = (self.pair[0] + 1, self.pair[1])
net, meter = nn.Linear(4, 4), Meter()
optimizer = sgd(net)
for step in range(30):
    if step % 10 == 0:
        meter.reset()
    rows = net(noise(8, 4))
    meter.take(rows)
    optimizer.CLEAR()
    rows.abs().mean().backward()
    optimizer.step()
print("with a graph" if first_of(meter.state) else "without")
"""
PROGRAMS = {"a memory": CELL, "a meter": METER}


def text_of(framework: str, text: str, kept: str, mark: str) -> str:
    for name in ("mean", "size"):
        text = text.replace(f"KEPT_{name.upper()}", kept.replace("each", name))
    text = text.replace("KEPT", kept).replace("MARK", mark)
    return HEAD[framework] + text.replace("CLEAR", "zero_grad" if framework == "torch" else "clear_grad")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: text_of(request.param, text, "each", "  # CAUSE") for name, text in PROGRAMS.items()}
    texts |= {f"{name}, cut": text_of(request.param, text, "each.detach()", "") for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-states-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_that_gives_it_anew(runs: dict[str, Run], name: str) -> None:
    assert "with a graph" in runs[name].plain, runs[name].plain
    runs[name].check_first("graph-kept")


@each
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_cut(runs: dict[str, Run], name: str) -> None:
    assert "without" in runs[f"{name}, cut"].plain, runs[f"{name}, cut"].plain
    runs[f"{name}, cut"].check_healthy()
