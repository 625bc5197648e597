"""A module that runs for the first time in an iteration that is not sampled, and overwrites what autograd saved: a
critic after a warm-up, called for real and for fake."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.diagnosing_many import diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
noise = framework.randn
def sgd(module):
    return framework.optim.SGD(module.parameters(), 0.05)
def clear(opt):
    opt.zero_grad()
class Base(nn.Module):
    def keep(self, name, value):
        self.register_buffer(name, value)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
noise = lambda *shape: framework.randn(shape)
def sgd(module):
    return framework.optimizer.SGD(0.05, parameters=module.parameters())
def clear(opt):
    opt.clear_grad()
class Base(nn.Layer):
    def keep(self, name, value):
        self.register_buffer(name, value)
""",
}
PROGRAM = """
class Critic(Base):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)
        self.keep("u", noise(4))
    def forward(self, x):
        u = self.u
        with framework.no_grad():
            u.add_(noise(4))  # CAUSE
        sigma = (USED * self.out.weight.reshape([4])).sum()
        return self.out(x) / sigma
net, critic = nn.Linear(3, 4), Critic()
first, second = sgd(net), sgd(critic)
for step in range(6):
    loss = net(noise(8, 3)).square().mean()
    loss.backward()
    first.step()
    clear(first)
for step in range(3):
    loss = (critic(noise(8, 4)) - critic(net(noise(8, 3)).detach())).mean()
    loss.backward()
    second.step()
    clear(second)
print("done")
"""


@pytest.mark.parametrize("framework", [case(name, name) for name in FRAMEWORKS])
def test_what_it_overwrites_is_known(framework: str, tmp_path: Path) -> None:
    """The seventh backward raises, in the framework's own words; with a copy nothing does."""
    head = HEAD[framework]
    runs = diagnose_each(
        framework,
        tmp_path,
        {"bug": head + PROGRAM.replace("USED", "u"), "fixed": head + PROGRAM.replace("USED", "u.clone()")},
    )
    found = runs["bug"].check_first("in-place")
    assert "overwrites a tensor" in found["message"] and found["backward"] == 7, found
    assert "done" not in runs["bug"].output and "done" in runs["fixed"].output
    assert not runs["fixed"].above_notes(), runs["fixed"]
