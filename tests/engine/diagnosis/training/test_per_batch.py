"""Schedules with milestones in epochs that each batch steps; beside such that are meant so. Witness: the rates that the
program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.optim import lr_scheduler as lr
torch.manual_seed(0)
noise, clear = torch.randn, "zero_grad"
net = nn.Linear(4, 1)
def milestones(at, gamma):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return optimizer, lr.MultiStepLR(optimizer, at, gamma)
def by(factor):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return optimizer, lr.LambdaLR(optimizer, factor)
def rate_of(optimizer):
    return optimizer.param_groups[0]["lr"]
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.optimizer import lr
paddle.seed(0)
noise, clear = lambda *shape: paddle.randn(shape), "clear_grad"
net = nn.Linear(4, 1)
def milestones(at, gamma):
    rate = lr.MultiStepDecay(0.1, at, gamma)
    return paddle.optimizer.SGD(rate, parameters=net.parameters()), rate
def by(factor):
    rate = lr.LambdaDecay(0.1, factor)
    return paddle.optimizer.SGD(rate, parameters=net.parameters()), rate
def rate_of(optimizer):
    return optimizer.get_lr()
""",
}
RUN = """
optimizer, schedule = MADE
for epoch in range(8):
    for _ in range(20):
        loss = (net(noise(8, 4)) - 1).square().mean()
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
        PER_STEP
    print(epoch, rate_of(optimizer))
    PER_EPOCH
"""
STEP, EPOCH = ("schedule.step()  # CAUSE", "pass"), ("pass", "schedule.step()")
BUGGY = {
    "two milestones": ("milestones([4, 6], 0.1)", STEP),
    "one": ("milestones([5], 0.02)", STEP),
    "a function": ("by(lambda epoch: 1.0 if epoch < 3 else 0.1 if epoch < 6 else 0.01)", STEP),
}
HEALTHY = {
    "per epoch": ("milestones([4, 6], 0.1)", EPOCH),
    "in batches": ("milestones([80, 120], 0.1)", STEP),
    "a warm-up": ("by(lambda step: min(1.0, (step + 1) / 10))", STEP),
    "a little less": ("milestones([4, 6], 0.5)", STEP),
    "down and up": ("by(lambda step: 0.01 if 4 <= step < 9 else 1.0)", STEP),
}
# One loop: a step may be an epoch.
WHOLE = RUN.replace("    for _ in range(20):\n", "").replace("        ", "    ").replace("range(8)", "range(160)")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {
        name: HEAD[request.param] + RUN.replace("MADE", made).replace("PER_STEP", step).replace("PER_EPOCH", epoch)
        for name, (made, (step, epoch)) in {**BUGGY, **HEALTHY}.items()
    }
    whole = WHOLE.replace("MADE", "milestones([10], 0.01)").replace("PER_STEP", STEP[0]).replace("PER_EPOCH", "pass")
    texts["whole"] = HEAD[request.param] + whole
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-per-batch-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_all_is_over_in_the_first_epoch(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("zero-learning-rate")
    assert "of 160 steps, and stays there" in found["message"], found


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_schedules_that_are_meant_so(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
def test_a_step_that_may_be_an_epoch(runs: dict[str, Run]) -> None:
    runs["whole"].check_healthy("zero-learning-rate")
