"""Two networks, two optimizers: gradients that the loss of one leaves in the other. Witness: the norms of the gradients
that the program itself prints."""

from __future__ import annotations

import re

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
soft, cat, noise = nn.functional.softplus, torch.cat, torch.randn
def adam(module):
    return torch.optim.Adam(module.parameters(), lr=1e-3)
def freeze(module, frozen):
    module.requires_grad_(not frozen)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
soft, cat, noise = nn.functional.softplus, paddle.concat, lambda *shape: paddle.randn(shape)
def adam(module):
    return paddle.optimizer.Adam(1e-3, parameters=module.parameters())
def freeze(module, frozen):
    for each in module.parameters():
        each.stop_gradient = frozen
""",
}
NETS = """
def mlp(inner, outer):
    return nn.Sequential(nn.Linear(inner, 16), nn.ReLU(), nn.Linear(16, outer))
"""

GAN = """
generator, critic = mlp(4, 2), mlp(2, 1)
of_generator, of_critic = adam(generator), adam(critic)
for step in range(12):
    fake = generator(noise(8, 4))
    loss = soft(-critic(noise(8, 2))).mean() + soft(critic(fake.detach())).mean()
    loss.backward()
    if step == 3:
        print("joined", float(critic[2].weight.grad.norm()))
    of_critic.step()
    of_critic.CLEAR()  # CAUSE
    loss = soft(-critic(generator(noise(8, 4)))).mean()
    loss.backward()
    if step == 2:
        print("left", float(critic[2].weight.grad.norm()))
    of_generator.step()
    of_generator.CLEAR()
"""

# An actor learns from what its critic says of its actions.
ACTOR = """
class Agent:
    def __init__(self):
        self.actor, self.critic = mlp(3, 2), mlp(5, 1)
        self.actor_optimizer, self.critic_optimizer = adam(self.actor), adam(self.critic)

    def update(self, state, action, reward):
        error = (self.critic(cat([state, action], -1)) - reward).square().mean()
        self.apply(self.critic_optimizer, error)
        value = self.critic(cat([state, self.actor(state)], -1))
        self.apply(self.actor_optimizer, -value.mean())

    def apply(self, optimizer, loss):
        loss.backward()
        optimizer.step()
        optimizer.CLEAR()  # CAUSE

agent = Agent()
for _ in range(10):
    agent.update(noise(8, 3), noise(8, 2), noise(8, 1))
"""

# Both are cleared before their own backward.
OWN = "    loss.backward()\n    if step == 3"
CLEARED = GAN.replace(OWN, "    of_critic.CLEAR()\n" + OWN)
# The critic takes no gradient while the generator learns.
FROZEN = (
    GAN.replace("    loss = soft(-critic(gen", "    freeze(critic, True)\n    loss = soft(-critic(gen")
    + """
    freeze(critic, False)
"""
)
# An encoder that two losses train: each has its head, one has none.
SHARED = """
encoder, head = mlp(4, 6), nn.Linear(6, 1)
of_encoder, of_head = adam(encoder), adam(head)
for _ in range(10):
    x = noise(8, 4)
    head(encoder(x)).square().mean().backward()
    of_head.step()
    of_head.CLEAR()
    (encoder(x) - encoder(x + 0.01 * noise(8, 4))).square().mean().backward()
    of_encoder.step()
    of_encoder.CLEAR()
"""
# Both learn from one loss, one steps every second time.
LATE = """
encoder, head = mlp(4, 6), nn.Linear(6, 1)
of_encoder, of_head = adam(encoder), adam(head)
for step in range(12):
    head(encoder(noise(8, 4))).square().mean().backward()
    of_encoder.step()
    of_encoder.CLEAR()
    if step % 2:
        of_head.step()
        of_head.CLEAR()
"""

# A student and an adapter of its own optimizer: a module is cleared that is one of the two.
PAIR = """
student, adapter = mlp(4, 6), nn.Linear(6, 3)
optimizers = [adam(student), adam(adapter)]
for step in range(10):
    loss = adapter(student(noise(8, 4))).square().mean()
    student.CLEAR_ALL()  # CAUSE
    loss.backward()
    for each in optimizers:
        each.step()
"""
# One optimizer for both.
JOINT = PAIR.replace("[adam(student), adam(adapter)]", "[adam(nn.Sequential(student, adapter))]")
WHOLE = PAIR.replace("    loss.backward", "    adapter.CLEAR_ALL()\n    loss.backward")

# Of two optimizers the same is cleared twice.
TWICE = """
generator, critic = mlp(4, 2), mlp(2, 1)
of_generator, of_critic = adam(generator), adam(critic)
for step in range(10):
    fake = generator(noise(8, 4))
    of_critic.CLEAR()
    (soft(-critic(noise(8, 2))).mean() + soft(critic(fake.detach())).mean()).backward()
    of_critic.step()
    of_critic.CLEAR()  # CAUSE
    soft(-critic(fake)).mean().backward()
    of_generator.step()
"""
EACH = TWICE.replace("CLEAR()  # CAUSE", "CLEAR()\n    of_generator.CLEAR()")

NARROW = {"pair": PAIR, "joint": JOINT, "twice": TWICE}
BUGGY = {"gan": GAN, "actor": ACTOR}
HEALTHY = {"cleared": CLEARED, "frozen": FROZEN, "shared": SHARED, "late": LATE, "whole": WHOLE, "each": EACH}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    of_module = "zero_grad" if request.param == "torch" else "clear_gradients"
    every = (BUGGY | NARROW | HEALTHY).items()
    programs = {name: text.replace("CLEAR()", f"{clear}()").replace("CLEAR_ALL", of_module) for name, text in every}
    texts = {name: HEAD[request.param] + NETS + text for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-leaked-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_clears_too_early(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("zero-grad")
    assert first["severity"] == "warning" and "another loss" in first["message"], first


@each
@pytest.mark.parametrize("name", NARROW)
def test_the_line_that_clears_one_module_of_two(runs: dict[str, Run], name: str) -> None:
    assert runs[name].check_first("zero-grad")["severity"] == "error"


@each
def test_norms_are_those_of_the_program(runs: dict[str, Run]) -> None:
    printed = {word: float(number) for word, number in re.findall(r"(left|joined) ([\d.e+-]+)", runs["gan"].output)}
    (told,) = (each for each in runs["gan"].told[0]["evidence"] if "2.weight: norm" in each)
    numbers = re.findall(r"norm ([\d.e-]+) .* left it, ([\d.e-]+) .* began, ([\d.e-]+)", told)[0]
    left, begun, joined = map(float, numbers)
    assert left == begun == pytest.approx(printed["left"], rel=1e-3)
    assert joined == pytest.approx(printed["joined"], rel=1e-3)


@each
def test_losses_that_are_meant_to_add_up_are_no_finding(runs: dict[str, Run]) -> None:
    for name in HEALTHY:
        runs[name].check_healthy()
