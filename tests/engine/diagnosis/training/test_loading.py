"""State dicts of which nothing is loaded, and statistics that move under frozen weights."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)
pairs = list(zip(x.split(4), y.split(4)))
Module, BatchNorm = nn.Module, nn.BatchNorm1d

def adam(parameters):
    return torch.optim.Adam(list(parameters), lr=1e-3)

def freeze(model):
    model.requires_grad_(False)

def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
import warnings
import paddle
from paddle import nn
warnings.simplefilter("ignore")
paddle.seed(0)
x, y = paddle.randn([16, 6]), paddle.randn([16, 1])
pairs = list(zip(x.split(4), y.split(4)))
Module, BatchNorm = nn.Layer, nn.BatchNorm1D

def adam(parameters):
    return paddle.optimizer.Adam(1e-3, parameters=list(parameters))

def freeze(model):
    for parameter in model.parameters():
        parameter.stop_gradient = True

def clear(optimizer):
    optimizer.clear_grad()
""",
}

REST = """
def fit(forward, optimizer):
    for batch, target in pairs:
        clear(optimizer)
        (forward(batch) - target).pow(2).mean().backward()
        optimizer.step()

class Net(Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), BatchNorm(8)), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x))
"""

PROGRAMS = {
    "saved by a wrapper": """
kept = {"module." + name: value for name, value in Net().state_dict().items()}
model = Net()
LOAD(model, kept)  # CAUSE
fit(model, adam(model.parameters()))
""",
    "saved of a part": """
class Wrapper(Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)

def resume(wrapper, path):
    LOAD(wrapper, path)  # CAUSE
    return wrapper

model = resume(Wrapper(Net()), Net().state_dict())
fit(model, adam(model.parameters()))
""",
    "a checkpoint with the weights inside": """
class Trainer:
    def __init__(self):
        self.net = Net()
        self.optimizer = adam(self.net.parameters())

    def restore(self, checkpoint):
        LOAD(self.net, checkpoint)  # CAUSE

trainer = Trainer()
trainer.restore({"net": Net().state_dict(), "epoch": 3})
fit(trainer.net, trainer.optimizer)
""",
}

HEALTHY = {
    "another head": """
model = Net()
old = {name: value for name, value in Net().state_dict().items() if "head" not in name}
LOAD(model, {**old, "classifier.weight": next(iter(old.values()))})
fit(model, adam(model.parameters()))
""",
    "what there is, of an empty dict too": """
model = Net()
LOAD(model, model.state_dict())
LOAD(model, {})
fit(model, adam(model.parameters()))
""",
}

STATISTICS = """
model = Net()
freeze(model.body)
fit(model, adam(model.head.parameters()))
"""
KEPT = STATISTICS.replace("freeze(model.body)", "freeze(model.body)\nmodel.body.eval()")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    load = "{}.load_state_dict({}, strict=False)" if framework == "torch" else "{}.set_state_dict({})"
    programs = PROGRAMS | HEALTHY | {"statistics": STATISTICS, "kept": KEPT}
    texts = {name: HEAD[framework] + REST + _with(program, load) for name, program in programs.items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


def _with(program: str, load: str) -> str:
    """As the framework calls it: a user's line, no function in between."""
    lines = []
    for line in program.splitlines():
        if "LOAD(" in line:
            indent, rest = line.split("LOAD(")
            model, _, given = rest.partition(", ")
            given, _, comment = given.rpartition(")")
            line = f"{indent}{load.format(model, given)}{comment}"
        lines.append(line)
    return "\n".join(lines) + "\n"


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-loading-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_programs_that_load(runs: dict[str, Run]) -> None:
    for name in PROGRAMS:
        runs[name].check_first("not-loaded")
    for name in HEALTHY:
        runs[name].check_healthy()


@each
def test_statistics_under_frozen_weights_are_a_note(runs: dict[str, Run]) -> None:
    (found,) = [each for each in runs["statistics"].told if each["kind"] == "wrong-mode"]
    assert found["severity"] == "note" and "body.1" in found["message"], str(runs["statistics"])
    assert not [each for each in runs["kept"].told if each["kind"] == "wrong-mode"], str(runs["kept"])
