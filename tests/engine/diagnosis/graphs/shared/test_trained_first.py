"""A generator whose loss is run back and stepped first; then the critic is trained on the same fake, which was not
detached. Witness of the advice: the program that follows it runs to its end, and is no finding. The other order is in
``test_shared``."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
soft, noise = nn.functional.softplus, torch.randn
def adam(*modules):
    return torch.optim.Adam([each for module in modules for each in module.parameters()], lr=1e-3)
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
soft, noise = nn.functional.softplus, lambda *shape: paddle.randn(shape)
def adam(*modules):
    return paddle.optimizer.Adam(1e-3, parameters=[each for module in modules for each in module.parameters()])
""",
}
MADE = """
generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
of_generator, of_critic = adam(generator), adam(critic)
"""
FUNCTIONS = (
    MADE
    + """
def train_generator(fake):
    of_generator.CLEAR()
    loss = soft(-critic(fake)).mean()
    loss.backward()
    of_generator.step()
    return float(loss)
def train_critic(real, fake):
    of_critic.CLEAR()
    on_real = soft(-critic(real)).mean()
    on_fake = soft(critic(FAKE)).mean()MARK
    (on_real + on_fake).backward()
    of_critic.step()
for _ in range(4):
    fake = generator(noise(8, 4))
    train_generator(fake)
    train_critic(noise(8, 2), fake)
"""
)
INLINE = (
    MADE
    + """
for _ in range(4):
    fake = generator(noise(8, 4))
    of_generator.CLEAR()
    (-critic(fake).mean()).backward()
    of_generator.step()
    of_critic.CLEAR()
    apart = critic(FAKE).mean() - critic(noise(8, 2)).mean()MARK
    apart.backward()
    of_critic.step()
"""
)
# The loss is computed in a function of its own, and the fake is an attribute.
METHODS = (
    MADE
    + """
class Training:
    def loss(self, real, fake):
        both = critic(real), critic(fake)
        return soft(-both[0]).mean() + soft(both[1]).mean()
    def of_generator(self):
        self.fake = generator(noise(8, 4))
        of_generator.CLEAR()
        soft(-critic(self.fake)).mean().backward()
        of_generator.step()
    def of_critic(self, real):
        of_critic.CLEAR()
        loss = self.loss(real, FAKE)MARK
        loss.backward()
        of_critic.step()
training = Training()
for _ in range(4):
    training.of_generator()
    training.of_critic(noise(8, 2))
"""
)
# Words and pictures go to the critic together.
JOINED = (
    MADE.replace("nn.Linear(2, 8)", "nn.Linear(4, 8)")
    + """
for _ in range(4):
    words = noise(8, 2)
    fake = generator(noise(8, 4))
    of_generator.CLEAR()
    soft(-critic(JOIN([fake, words], 1))).mean().backward()
    of_generator.step()
    of_critic.CLEAR()
    pairs = JOIN([FAKE, words], 1)MARK
    loss = soft(critic(pairs)).mean() + soft(-critic(noise(8, 4))).mean()
    loss.backward()
    of_critic.step()
"""
)
PROGRAMS = {
    "functions": (FUNCTIONS, "fake"), "inline": (INLINE, "fake"), "methods": (METHODS, "self.fake"),
    "joined": (JOINED, "fake"),
}  # fmt: skip
WORDS = {
    "torch": {"CLEAR": "zero_grad", "JOIN": "torch.cat"},
    "paddle": {"CLEAR": "clear_grad", "JOIN": "paddle.concat"},
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: text.replace("FAKE", fake) for name, (text, fake) in PROGRAMS.items()}
    texts = {name: text.replace("MARK", "  # CAUSE") for name, text in texts.items()}
    texts |= {
        f"{name}, detached": text.replace("FAKE", f"{fake}.detach()").replace("MARK", "")
        for name, (text, fake) in PROGRAMS.items()
    }
    for word, meant in WORDS[request.param].items():
        texts = {name: text.replace(word, meant) for name, text in texts.items()}
    texts = {name: HEAD[request.param] + text for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-trained-first-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_line_that_takes_it_in_the_second_step(runs: dict[str, Run], name: str) -> None:
    assert "Error" in runs[name].plain, runs[name].plain
    first = runs[name].check_first("second-backward")
    assert "has stepped since" in first["message"] and "detach it where" in first["message"], first["message"]


@each
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_advice_helps(runs: dict[str, Run], name: str) -> None:
    run = runs[f"{name}, detached"]
    assert "Error" not in run.plain, run.plain
    run.check_healthy()
