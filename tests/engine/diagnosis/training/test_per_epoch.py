"""Warm-ups in optimizer steps that are stepped once per epoch. Witness: the rates that the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import math
import torch
from torch import nn
torch.manual_seed(0)
noise, lr = torch.randn, torch.optim.lr_scheduler
EPOCHS, STEPS = 6, 20
net = nn.Linear(4, 2)
def by(factor, rate=0.1):
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    return optimizer, lr.LambdaLR(optimizer, factor)
def with_schedule(make, rate=0.1):
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    return optimizer, make(optimizer)
def rate_of(optimizer):
    return optimizer.param_groups[0]["lr"]
def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
import math
import paddle
from paddle import nn
paddle.seed(0)
noise, lr = lambda *shape: paddle.randn(shape), paddle.optimizer.lr
EPOCHS, STEPS = 6, 20
net = nn.Linear(4, 2)
def by(factor, rate=0.1):
    schedule = lr.LambdaDecay(rate, factor)
    return paddle.optimizer.SGD(schedule, parameters=net.parameters()), schedule
def with_schedule(make, rate=0.1):
    schedule = make(rate)
    return paddle.optimizer.SGD(schedule, parameters=net.parameters()), schedule
def rate_of(optimizer):
    return optimizer.get_lr()
def clear(optimizer):
    optimizer.clear_grad()
""",
}
RUN = """
class Loop:
    def __init__(self, optimizer, schedule):
        self.optimizer, self.schedule = optimizer, schedule
    def train_one(self):
        loss = (net(noise(8, 4)) - 1).square().mean()
        clear(self.optimizer)
        loss.backward()
        self.optimizer.step()
    def fit(self, epochs):
        for _ in range(epochs):
            for _ in range(STEPS):
                self.train_one()
                PER_STEP
            print(rate_of(self.optimizer))
            PER_EPOCH
loop = Loop(*MADE)
loop.fit(EPOCHS)
"""
# A function with both numbers, as is usual.
COSINE = """
def warm_up(warm, total):
    def factor(step):
        if step < warm:
            return step / warm
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, total - warm))))
    return factor
"""


def _program(made: str, first: str = "", per: str = "EPOCH", call: str = "self.schedule.step()") -> str:
    text = first + RUN.replace("MADE", made)
    other = "STEP" if per == "EPOCH" else "EPOCH"
    return text.replace(f"PER_{per}", call).replace(f"PER_{other}", "pass")


SLOW = "self.schedule.step()  # CAUSE"
BUGGY = {
    "a function": _program("by(warm_up(60, EPOCHS * STEPS))", COSINE, call=SLOW),
    "from a tenth": _program("by(lambda step: min(1.0, 0.1 + step / 100))", call=SLOW),
    # It rises by a curve, and was told of all steps.
    "a curve": _program("by(warm_up(EPOCHS * STEPS))", """
def warm_up(total):
    return lambda step: 0.5 * (1 - math.cos(2 * math.pi * (step + 1) / total))
""", call=SLOW),
    "at the head of the epoch": _program("by(warm_up(60, EPOCHS * STEPS))", COSINE, call=SLOW).replace(
        "            for _ in range(STEPS):", "            HEAD\n            for _ in range(STEPS):"
    ).replace(f"            {SLOW}\n", "").replace("HEAD", SLOW),
}  # fmt: skip
OWN = {
    "torch": {
        "one cycle": "with_schedule(lambda it: lr.OneCycleLR(it, 0.5, total_steps=EPOCHS * STEPS))",
        "in a row": "with_schedule(lambda it: lr.SequentialLR(it, [lr.LinearLR(it, 0.01, total_iters=50), "
        "lr.CosineAnnealingLR(it, 70)], [50]))",
    },
    "paddle": {
        "one cycle": "with_schedule(lambda rate: lr.OneCycleLR(0.5, EPOCHS * STEPS))",
        "in a row": "with_schedule(lambda rate: lr.LinearWarmup(lr.CosineAnnealingDecay(rate, 70), 50, 0.0, rate))",
    },
}
HEALTHY = {
    "per step": _program("by(warm_up(60, EPOCHS * STEPS))", COSINE, "STEP"),
    "per epoch": _program("by(lambda epoch: min(1.0, (epoch + 1) / 3))"),
    "per epoch, and not over": _program("by(lambda epoch: min(1.0, (epoch + 1) / 10))"),
    "falling": _program("by(lambda epoch: 0.5 ** epoch)"),
    "cosine": _program("by(lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / EPOCHS)))"),
    # For many more epochs than are run here.
    "few epochs": _program("by(lambda epoch: min(1.0, (epoch + 1) / 10))").replace("fit(EPOCHS)", "fit(2)"),
}
OWN_HEALTHY = {
    "torch": {
        "steps": "with_schedule(lambda it: lr.StepLR(it, 2))",
        "annealing": "with_schedule(lambda it: lr.CosineAnnealingLR(it, T_max=EPOCHS))",
        "linear": "with_schedule(lambda it: lr.LinearLR(it, 0.2, total_iters=4))",
    },
    "paddle": {
        "steps": "with_schedule(lambda rate: lr.StepDecay(rate, 2))",
        "annealing": "with_schedule(lambda rate: lr.CosineAnnealingDecay(rate, EPOCHS))",
        "linear": "with_schedule(lambda rate: lr.LinearWarmup(rate, 4, 0.02, rate))",
    },
}
LOST = _program("by(factor)", "def factor(epoch):\n    return min(1.0, epoch / 3)  # CAUSE\n")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    programs = BUGGY | HEALTHY | {"lost": LOST}
    programs |= {name: _program(made, call=SLOW) for name, made in OWN[request.param].items()}
    programs |= {name: _program(made) for name, made in OWN_HEALTHY[request.param].items()}
    texts = {name: HEAD[request.param] + text for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-per-epoch-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", [*BUGGY, *OWN["torch"]])
def test_a_warm_up_in_steps_that_counts_epochs(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("zero-learning-rate")
    assert "steps once for 20 of them" in first["message"] and first["severity"] == "error", first


@each
def test_a_first_epoch_without_a_rate(runs: dict[str, Run]) -> None:
    first = runs["lost"].check_first("zero-learning-rate")
    assert "the first 20 steps" in first["message"] and first["severity"] == "warning", first


@each
@pytest.mark.parametrize("name", [*HEALTHY, *OWN_HEALTHY["torch"]])
def test_healthy_schedules(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
