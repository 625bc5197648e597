"""The momentum of BatchNorm as another framework counts it. Witness: what is left of a running mean of 4 after two
batches of zeros, by the layer itself: the square of what one batch leaves."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named, only

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
Module, noise, zeros = nn.Module, fw.randn, fw.zeros
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.05)
    return optimizer, optimizer.zero_grad
def mean_of(norm):
    return norm.running_mean
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
Module, noise, zeros = nn.Layer, lambda *shape: fw.randn(shape), fw.zeros
def sgd(net):
    optimizer = fw.optimizer.SGD(0.05, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def mean_of(norm):
    return norm._mean
""",
}
NET = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.norm = LAYER
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.norm(self.body(x)))
net = Net()
"""
FIT = """
optimizer, clear = sgd(net)
for step in range(STEPS):
    loss = (net(noise(8, 4)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
EVALUATED = """
net.eval()
with fw.no_grad():
    net(noise(8, 4))
net.train()
"""
WITNESS = """
with fw.no_grad():
    norm = net.norm
    mean_of(norm).fill_(4.0)
    for _ in range(2):
        norm(zeros([8, 6]))
    print("left", round(float(mean_of(norm)[0]) / 4, 5))
"""


def program(norm: str, steps: int = 12, before: str = "", net: str = NET) -> str:
    return before + net.replace("LAYER", norm) + FIT.replace("STEPS", str(steps)) + EVALUATED + WITNESS


def changed(text: str, *parts: tuple[str, str]) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


# The number of another framework, and what two batches leave of the statistics; MANY and MORE are 0.99 and 0.9 of
# Keras on torch, 0.01 and 0.1 of torch on Paddle.
MOMENTA = {"torch": {"MANY": "0.99", "MORE": "0.9"}, "paddle": {"MANY": "0.01", "MORE": "0.1"}}
OWN = """
class Block(Module):
    def __init__(self, size, momentum):
        super().__init__()
        self.norm = nn.NORM1(size, momentum=momentum)  # CAUSE
    def forward(self, x):
        return self.norm(x)
"""
STACKED = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.NORM1(6, momentum=MANY),  # CAUSE
                                  nn.Linear(6, 6), nn.NORM1(6, momentum=MANY), nn.Tanh())
        self.norm, self.head = nn.NORM1(6, momentum=MANY), nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.norm(self.body(x)))
net = Net()
"""
IMAGES = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.images = nn.NORM2(
            2,
            momentum=MANY,  # CAUSE
        )
        self.norm, self.head = nn.NORM1(6), nn.Linear(6, 1)
    def forward(self, x):
        h = self.images(x.reshape([-1, 2, 1, 2])).reshape([-1, 4])
        return self.head(self.norm(fw.concat([h, h[:, :2]], 1)))
net = Net()
"""
BUGGY = {
    "on the layer's line": program("nn.NORM1(6, momentum=MANY)  # CAUSE"),
    "nine tenths": program("nn.NORM1(6, momentum=MORE)  # CAUSE"),
    "on a line of its own": program("nn.NORM1(\n            6,\n            momentum=MANY,  # CAUSE\n        )"),
    "a variable": program("nn.NORM1(6, momentum=KEPT)  # CAUSE", before="KEPT = MANY\n"),
    "a parameter": program("Block(6, MORE).norm", before=OWN),
    "by place": program("nn.NORM1(6, 1e-5, MANY)  # CAUSE"),
    "beside a layer of the usual one": program(
        "nn.NORM1(6, momentum=MANY)  # CAUSE", net=NET.replace("nn.Linear(4, 6)", "nn.Sequential(nn.Linear(4, 6), "
                                                           "nn.NORM1(6, momentum=0.5))")),
    "a variable beside a layer of another number": program(
        "nn.NORM1(6, momentum=KEPT)  # CAUSE", before="KEPT = MANY\n",
        net=NET.replace("nn.Linear(4, 6)", "nn.Sequential(nn.Linear(4, 6), nn.NORM1(6, momentum=0.5))")),
    "three layers": program("", net=STACKED),
    "of images": program("", net=IMAGES).replace("left", "usual"),
    "another name of the class": program("norm(6, momentum=MANY)  # CAUSE", before="norm = nn.NORM1\n"),
    "the class as an argument": program("made(nn.NORM1, 6)", before="""
def made(kind, size):
    return kind(size, momentum=MANY)  # CAUSE
"""),
    "eight forwards": program("nn.NORM1(6, momentum=MANY)  # CAUSE", steps=9),
}  # fmt: skip
FAULTS = {
    # FAULT: told, but at the line that calls the model, not where it is given.
    "by place": "a momentum without its name is not looked for",
    "a variable beside a layer of another number": "the first line that gives any momentum is named",
    "another name of the class": "the class is looked for by its own name alone",
    "the class as an argument": "the class is looked for by its own name alone",
}
HEALTHY = {
    "as the framework has it": program("nn.NORM1(6)"),
    "a half": program("nn.NORM1(6, momentum=0.5)"),
    "a slow one": program("nn.NORM1(6, momentum=OWN)"),
    "a slower one": program("nn.NORM1(6, momentum=SLOW)"),
    "a few forwards": program("nn.NORM1(6, momentum=MANY)", steps=7),
    "the last batch alone": program("nn.NORM1(6, momentum=LAST)"),
    "in evaluation": program("nn.NORM1(6, momentum=MANY)").replace(
        "optimizer, clear", "net.eval()\noptimizer, clear").replace(
        "with fw", "net.train()\nwith fw"),
    "no normalization": program("Other(6, momentum=MANY)", before="""
class Other(Module):
    def __init__(self, size, momentum):
        super().__init__()
        self.momentum = self._momentum = momentum
        self.running_mean = self._mean = zeros([size])
    def forward(self, x):
        batch = x.detach().mean(0)
        by = self.momentum if TORCH else 1 - self.momentum
        self.running_mean = self._mean = self._mean * (1 - by) + batch * by
        return x - self._mean
""").replace("mean_of(norm).fill_(4.0)", "norm._mean = norm.running_mean = zeros([6]) + 4"),
}  # fmt: skip
OTHERS = {
    "torch": {
        "OWN": "0.1",
        "SLOW": "0.01",
        "LAST": "1.0",
        "TORCH": "True",
        "ATTRIBUTE": "momentum",
        "NORM1": "BatchNorm1d",
        "NORM2": "BatchNorm2d",
    },
    "paddle": {
        "OWN": "0.9",
        "SLOW": "0.99",
        "LAST": "0.0",
        "TORCH": "False",
        "ATTRIBUTE": "_momentum",
        "NORM1": "BatchNorm1D",
        "NORM2": "BatchNorm2D",
    },
}
HEALTHY |= {
    "a schedule": changed(
        program("nn.NORM1(6, momentum=MANY)"),
        (
            "    clear()\n",
            """    clear()
    net.norm.ATTRIBUTE = OWN if step > 4 else MANY
""",
        ),
    ),
    "a class of the program's": changed(HEALTHY["no normalization"], ("Other", "BatchNormed")),
}
# Nothing says that it is ever evaluated.
TRAINED_ALONE = changed(program("nn.NORM1(6, momentum=MANY)  # CAUSE"), (EVALUATED, ""))
NONE = program("nn.NORM1(6, momentum=None)")
# What two batches leave, each layer's own arithmetic: (1 - 0.99)^2 is 0.0001.
LEFT = {"MANY": 0.0001, "MORE": 0.01}
HEALTHY_LEFT = {"as the framework has it": 0.81, "a half": 0.25, "a slow one": 0.81, "a slower one": 0.9801,
                "a few forwards": 0.0001, "the last batch alone": 0.0, "in evaluation": 0.0001,
                "no normalization": 0.0001, "a schedule": 0.81, "a class of the program's": 0.0001}  # fmt: skip


def filled(text: str, framework: str) -> str:
    for name, value in (MOMENTA[framework] | OTHERS[framework]).items():
        text = text.replace(name, value)
    return HEAD[framework] + text


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    parts["trained alone"] = TRAINED_ALONE
    if request.param == "torch":
        parts["none"] = NONE
    texts = {name: filled(part, request.param) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"norm-momentum-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


def left(run: Run) -> float:
    return float(run.plain.split("left ")[1].split()[0])


@each
@named(BUGGY, FAULTS)
def test_a_momentum_that_is_counted_from_the_other_end(runs: dict[str, Run], name: str) -> None:
    run, part = runs[f"buggy, {name}"], "MANY" if "MANY" in BUGGY[name] else "MORE"
    if name != "of images":  # the witness is a layer of the usual momentum there
        assert left(run) == LEFT[part], run
    first = run.check_first("norm-momentum")
    assert first["severity"] == "warning", first
    (number,) = {MOMENTA[each][part] for each in FRAMEWORKS if MOMENTA[each][part] in run.program}
    kept, right = ("0.01", "0.1")[part == "MORE"], "0.01" if number == "0.99" else "0.99"
    right = right if part == "MANY" else ("0.1" if number == "0.9" else "0.9")
    assert f"momentum={number} keeps {kept} of its running statistics" in first["message"], first
    assert f"momentum={right} is meant" in first["message"], first
    assert len(run.above_notes()) == 1, run


@each
@named(FAULTS, {})
def test_it_is_told_at_another_line(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert [each["kind"] for each in run.above_notes()] == ["norm-momentum"], run


@each
@named(HEALTHY, {})
def test_a_momentum_that_is_meant(runs: dict[str, Run], name: str) -> None:
    assert left(runs[name]) == pytest.approx(HEALTHY_LEFT[name], abs=1e-4), runs[name]
    if name == "in evaluation":  # which is told by itself
        runs[name].check_first("wrong-mode")
        assert len(runs[name].every) == 1, runs[name]
    else:
        runs[name].check_healthy()


@each
def test_where_nothing_is_evaluated(runs: dict[str, Run]) -> None:
    assert left(runs["trained alone"]) == LEFT["MANY"], runs["trained alone"]
    runs["trained alone"].check_first("norm-momentum")
    runs["trained alone"].check_healthy("norm-momentum")


@only("torch", "Paddle has no momentum of None, by which torch takes the mean of all batches")
@pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
def test_the_mean_of_all_batches(runs: dict[str, Run]) -> None:
    # After 12 batches of noise two batches of zeros leave 12 / 14, whatever was written in between.
    assert left(runs["none"]) == pytest.approx(12 / 14, abs=1e-4), runs["none"]
    runs["none"].check_healthy()
