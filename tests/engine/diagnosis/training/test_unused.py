"""Gradients of micro-batches that are cleared before a step has used them. Witness: norms that the program prints."""

from __future__ import annotations

import re

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
noise = framework.randn
def sgd(module):
    return framework.optim.SGD(module.parameters(), lr=1e-2)
def clip(module):
    nn.utils.clip_grad_norm_(module.parameters(), 0.01)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
noise = lambda *shape: framework.randn(shape)
def sgd(module):
    return framework.optimizer.SGD(1e-2, parameters=module.parameters())
def clip(module):
    nn.utils.clip_grad_norm_(module.parameters(), 0.01)
""",
}
NET = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = sgd(net)
"""

MICRO = """
for step in range(8):
    for micro in range(4):
        loss = (net(noise(6, 4)) - 1).square().mean() / 4
        optimizer.CLEAR()  # CAUSE
        loss.backward()
        if step == 2:
            print("left", float(net[0].weight.grad.norm()))
    optimizer.step()
"""
CLIPPED = MICRO.replace("    optimizer.step()", "    clip(net)\n    optimizer.step()").replace(
    "optimizer.CLEAR()", "net.CLEAR_ALL()"
)
CALLED = """
def part(x):
    (net(x) - 1).square().mean().backward()
class Trainer:
    def fit(self, batches):
        for batch in batches:
            for x in batch:
                self.part(x)
            optimizer.step()
    def part(self, x):
        optimizer.CLEAR()  # CAUSE
        part(x)
Trainer().fit([[noise(6, 4), noise(6, 4)] for _ in range(8)])
"""

ACCUMULATED = MICRO.replace("        optimizer.CLEAR()  # CAUSE\n", "").replace(
    "    for micro", "    optimizer.CLEAR()\n    for micro"
)
# The gradients of each task are kept, and joined before the step.
SURGERY = """
for step in range(8):
    kept = []
    for task in range(3):
        optimizer.CLEAR()
        (net(noise(6, 4)) - task).square().mean().backward()
        kept.append([each.grad.clone() for each in net.parameters()])
    for gradients in kept[:-1]:
        for each, gradient in zip(net.parameters(), gradients):
            with framework.no_grad():
                each.grad.add_(gradient)
    optimizer.step()
"""
# The first backward says where to look, the second one is stepped (SAM).
SHARP = """
for step in range(8):
    x = noise(6, 4)
    for ascend in (True, False):
        optimizer.CLEAR()
        (net(x) - 1).square().mean().backward()
        with framework.no_grad():
            if ascend:
                moved = [0.05 * each.grad / (each.grad.norm() + 1e-6) for each in net.parameters()]
                for each, way in zip(net.parameters(), moved):
                    each.add_(way)
            else:
                for each, way in zip(net.parameters(), moved):
                    each.subtract_(way)
    optimizer.step()
"""
# A batch whose loss is too large is left out.
LEFT_OUT = """
for step in range(24):
    x = noise(6, 4) * (5 if step % 5 == 3 else 1)
    optimizer.CLEAR()
    loss = (net(x) - 1).square().mean()
    loss.backward()
    if step % 5 != 3:
        optimizer.step()
"""

# Every second one is, with a clearing of its own.
EVEN = """
for step in range(24):
    optimizer.CLEAR()
    (net(noise(6, 4)) - 1).square().mean().backward()
    if step % 2:
        optimizer.CLEAR()
        continue
    optimizer.step()
"""

BUGGY = {"micro": MICRO, "clipped": CLIPPED, "called": CALLED}
HEALTHY = {"accumulated": ACCUMULATED, "surgery": SURGERY, "sharp": SHARP, "left out": LEFT_OUT, "even": EVEN}

# What a loss adds is exactly the opposite of what another one left: gone in the backward, and not behind it.
CANCELLED = """
maker, judge = nn.Linear(4, 3), nn.Linear(3, 1)
of_maker, of_judge = sgd(maker), sgd(judge)
for step in range(12):
    x = noise(6, 4)
    of_maker.CLEAR()
    of_judge.CLEAR()
    made = maker(x)
    (-judge(made)).mean().backward()
    of_maker.step()
    judge(made.detach()).mean().backward()  # CAUSE
    of_judge.step()
"""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    names = {"torch": ("zero_grad", "zero_grad"), "paddle": ("clear_grad", "clear_gradients")}[request.param]
    texts = {name: NET + text for name, text in (BUGGY | HEALTHY).items()} | {"cancelled": CANCELLED}
    programs = {
        name: HEAD[request.param] + text.replace("CLEAR()", f"{names[0]}()").replace("CLEAR_ALL", names[1])
        for name, text in texts.items()
    }
    if request.param == "torch":
        programs["sharp"] = programs["sharp"].replace("subtract_", "sub_")
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-unused-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_clears_micro_batches(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("cleared-gradients")
    times = 2 if name == "called" else 4
    assert f"{times - 1} of {times} backwards" in first["message"] and first["severity"] == "warning", first


@each
def test_norms_are_those_of_the_program(runs: dict[str, Run]) -> None:
    printed = [float(number) for number in re.findall(r"left ([\d.e+-]+)", runs["micro"].output)]
    (told,) = (each for each in runs["micro"].told[0]["evidence"] if "that were cleared" in each)
    assert [float(each) for each in re.findall(r"[\d.]+(?:e[+-]\d+)?", told)] == pytest.approx(printed, rel=1e-3)


@each
def test_programs_that_use_them_are_no_finding(runs: dict[str, Run]) -> None:
    for name in HEALTHY:
        assert not [found for found in runs[name].told if found["kind"] == "cleared-gradients"], name
        runs[name].check_healthy()


@each
def test_gradients_that_cancel_are_not_thrown_away(runs: dict[str, Run]) -> None:
    assert "dropped-gradients" not in {found["kind"] for found in runs["cancelled"].told}, runs["cancelled"].told
    assert [found["kind"] for found in runs["cancelled"].told][:1] == ["zero-grad"], runs["cancelled"].told
