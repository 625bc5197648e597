"""What comes of gradients that are clipped where it has no effect: numbers that outgrow their range."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
noise, exp, log = torch.randn, torch.exp, torch.log
def sgd(module, rate):
    return torch.optim.SGD(module.parameters(), lr=rate)
def clear(module):
    module.zero_grad()
Base = nn.Module
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
noise, exp, log = lambda *shape: paddle.randn(shape), paddle.exp, paddle.log
def sgd(module, rate):
    return paddle.optimizer.SGD(rate, parameters=module.parameters())
def clear(module):
    module.clear_gradients()
Base = nn.Layer
""",
}

# A polynomial of what a stack gives: each step is larger than the one before.
GROWS = """
class Cubes(Base):
    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 1)
    def forward(self, x):
        h = self.first(x)
        h = h * h * h
        h = self.second(h)
        return self.last(h * h * h)
net = Cubes(16)
chosen = sgd(net, 0.05)
class Trainer:
    def __init__(self, bound):
        self.bound = bound
    def turn(self, x, goal):
        clear(net)
        CLIP_FIRST
        error = ((net(x) - goal) ** 2).mean()
        error.backward()
        chosen.step()
        CLIP_LAST
trainer = Trainer(0.5)
for _ in range(6):
    trainer.turn(2 * noise(8, 6), noise(8, 1))
"""
CLIPS = "nn.utils.clip_grad_norm_(net.parameters(), self.bound)  # CAUSE"
BY_VALUE = "nn.utils.clip_grad_value_(list(net.parameters()), self.bound)  # CAUSE"

# Behind the step until numbers had outgrown their range, and in its place from then on.
LATER_IN_TIME = GROWS.replace("CLIP_FIRST", "self.turns = getattr(self, 'turns', 0) + 1").replace(
    "        chosen.step()\n        CLIP_LAST\n", """
        for what in ((chosen.step, self.clip), (self.clip, chosen.step))[self.turns > 4]:
            what()
    def clip(self):
        nn.utils.clip_grad_norm_(net.parameters(), self.bound)
"""
)  # fmt: skip

# What is not finite was so of itself: the logarithm of what a batch has as 0. Gradients are far beyond the limit, too.
OF_ZERO = """
net = nn.Linear(6, 1)
chosen = sgd(net, 1e-4)
for turn in range(6):
    x = noise(8, 6)
    clear(net)
    share = x[:, 0] * 0 + (0.0 if turn == 3 else 1.0)
    error = ((100 * net(x)) ** 2).mean() + (log(share) * net(x)[:, 0]).mean()  # CAUSE
    error.backward()
    chosen.step()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
"""

# One batch is far out of the range of exp, while no gradient came near the limit before.
OF_A_BATCH = """
net = nn.Linear(6, 1)
chosen = sgd(net, 1e-4)
for turn in range(6):
    x = noise(8, 6) * (1e4 if turn == 4 else 0.1)
    clear(net)
    error = exp(net(x)).mean()  # CAUSE
    error.backward()
    chosen.step()
    nn.utils.clip_grad_norm_(net.parameters(), 50.0)
"""

PROGRAMS = {
    "behind the step": GROWS.replace("CLIP_FIRST", "pass").replace("CLIP_LAST", CLIPS),
    "before backward": GROWS.replace("CLIP_FIRST", CLIPS).replace("CLIP_LAST", "pass"),
    "by value": GROWS.replace("CLIP_FIRST", "pass").replace("CLIP_LAST", BY_VALUE),
    "later in time": LATER_IN_TIME,
    "of zero": OF_ZERO,
    "of a batch": OF_A_BATCH,
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    programs = {name: HEAD[request.param] + text for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-unclipped-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", ["behind the step", "before backward", "by value"])
def test_what_outgrew_its_range_follows_from_gradients_that_were_not_clipped(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    first = run.check_first("clipping-order")
    under = {each["kind"]: each["id"] for each in run.every if each["victim_of"] == first["id"]}
    assert first["id"] < min(under.values()) and "nonfinite" in under, f"told behind what follows from it\n{run}"
    assert len([each for each in run.told if each["severity"] == "error"]) == 1, str(run)


@each
@pytest.mark.parametrize("name", ["of zero", "of a batch"])
def test_what_is_not_finite_for_another_reason_is_told_by_itself(runs: dict[str, Run], name: str) -> None:
    """And the clipping beside it."""
    run = runs[name]
    assert run.check_first("nonfinite")["victim_of"] is None, str(run)
    (clipping,) = [each for each in run.told if each["kind"] == "clipping-order"]
    assert clipping["severity"] == "error", str(run)


@each
def test_clipping_that_acts_later_is_not_blamed(runs: dict[str, Run]) -> None:
    """It was told by then, and is taken back."""
    run = runs["later in time"]
    told = {each["kind"]: each for each in run.above_notes()}
    step = told["large-update"]["id"]
    assert "clipping-order" not in told and all(each["victim_of"] in (None, step) for each in run.every), str(run)
    assert "nonfinite" in {each["kind"] for each in run.every}, str(run)
    assert {each["id"] for each in run.every} != set(range(1, len(run.every) + 1)), f"it was not told before\n{run}"
