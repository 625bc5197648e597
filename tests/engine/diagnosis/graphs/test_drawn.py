"""Samples that are decoded into the loss and let no gradient through to what they are drawn from."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.distributions import Normal, Laplace, Gumbel, Independent
torch.manual_seed(0)
noise, clear, joined, exp, no_grad = torch.randn, "zero_grad", torch.cat, torch.exp, torch.no_grad
Module, zeros = nn.Module, torch.zeros
def made(*nets):
    return torch.optim.SGD([p for net in nets for p in net.parameters()], 0.001)
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.distribution import Laplace, Gumbel
paddle.seed(0)
Independent = lambda q, axes: q  # Paddle's has no rsample()
noise, zeros = lambda *shape: paddle.randn(shape), lambda *shape: paddle.zeros(shape)
Module, clear, joined, exp, no_grad = nn.Layer, "clear_grad", paddle.concat, paddle.exp, paddle.no_grad
def made(*nets):
    return paddle.optimizer.SGD(0.001, parameters=[p for net in nets for p in net.parameters()])
""",
}
COMMON = """
class Encoder(Module):
    def __init__(self, wide=6, kind=Laplace):
        super().__init__()
        self.body, self.middle, self.spread, self.kind = nn.Linear(wide, 8), nn.Linear(8, 2), nn.Linear(8, 2), kind
    def forward(self, x):
        h = self.body(x).tanh()
        return self.kind(self.middle(h), exp(self.spread(h)))
def far(q):
    where, how = (q.loc, q.scale)
    return (where * where + how * how - how.log()).mean()
encoder, decoder = Encoder(), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 6))
optimizer = made(encoder, decoder)
def train(loss_of, steps=9):
    for _ in range(steps):
        loss = loss_of()
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
        print(float(loss))
"""
PLAIN = """
class Auto:
    def terms(self, x):
        q = encoder(x)
        z = q.sample()  # CAUSE
        return ((decoder(z) - x) ** 2).sum(1).mean(), far(q)
def loss():
    rebuilt, apart = Auto().terms(noise(16, 6))
    return rebuilt + 0.5 * apart
train(loss)
"""
# Several samples, changed before they are decoded together with what they are asked for.
CONDITIONED = """
encoder, decoder = Encoder(kind=Gumbel), nn.Linear(2 + 3, 6)
optimizer = made(encoder, decoder)
def draw(q):
    return Independent(q, 1).sample([4])  # CAUSE
def loss():
    x, given = noise(16, 6), noise(4, 16, 3)
    q = encoder(x)
    seen = joined([0.5 * draw(q).tanh(), given], -1)
    return ((decoder(seen) - x) ** 2).mean() + 0.1 * far(q)
train(loss)
"""
# One sample after another, each drawn from a state that the one before went into.
STATES = """
cell, encoder = nn.Linear(2 + 8, 8), Encoder(wide=8, kind=Gumbel)
optimizer = made(cell, encoder, decoder)
def loss():
    state, total = noise(16, 8), 0.0
    for _ in range(3):
        q = encoder(state)
        z = q.sample()  # CAUSE
        state = cell(joined([z, state], -1)).tanh()
        total = total + ((decoder(z) - noise(16, 6)) ** 2).mean() + 0.1 * far(q)
    return total
train(loss)
"""
RIGHT = PLAIN.replace("q.sample()  # CAUSE", "q.rsample()")
# Not of Laplace: Paddle crashes in the gradient of its density at a sample that has none.
SCORED = """
encoder.kind = Gumbel
head = nn.Linear(2, 1)
optimizer = made(encoder, head)
def loss():
    q = encoder(noise(16, 6))
    action = q.sample()
    reward = -(action ** 2).sum(1)
    value = head(action).squeeze(1)
    return ((reward - value) ** 2).mean() - (q.log_prob(action).sum(1) * reward).mean() + 0.01 * far(q)
train(loss)
"""
LATER = """
head = nn.Linear(2, 1)
optimizer = made(encoder, head)
kept = []
def loss():
    x = noise(16, 6)
    q = encoder(x)
    action = q.sample()
    kept.append((x, action.numpy()))
    return (head(action) ** 2).mean() + 0.01 * far(q)
train(loss)
"""
UNSEEN = """
def loss():
    x = noise(16, 6)
    q = encoder(x)
    with no_grad():
        z = q.sample()
        print(float(((decoder(z) - x) ** 2).mean()))
    return ((decoder(q.rsample()) - x) ** 2).mean() + 0.5 * far(q)
train(loss)
"""
# The critic shares the body with the policy, and not the heads that the action is drawn from.
CRITIC = """
body, policy, spread, critic = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 2), nn.Linear(10, 1)
optimizer, other = made(body, critic), made(policy, spread)
def loss():
    h = body(noise(16, 6)).tanh()
    action = Laplace(policy(h), spread(h).exp()).sample()
    return (critic(joined([h, action], -1)) ** 2).mean()
def steer():
    h = body(noise(16, 6)).tanh().detach()
    q = Laplace(policy(h), spread(h).exp())
    return critic(joined([zeros(16, 8), q.rsample()], -1)).mean()
for _ in range(9):
    for one, by in ((loss, optimizer), (steer, other)):
        value = one()
        for each in (optimizer, other):
            getattr(each, clear)()
        value.backward()
        by.step()
"""
# What is predicted is put in again, and trained by its density at the data.
PREDICTED = """
encoder.kind = Gumbel
def loss():
    x = noise(16, 6)
    total = 0.0
    q = encoder(x)
    for _ in range(3):
        total = total - q.log_prob(noise(16, 2)).mean()
        q = encoder(decoder(q.sample()))
    return total - q.log_prob(noise(16, 2)).mean()
train(loss)
"""
# Drawn by the program itself, where no gradients are recorded.
OWN = """
def parts(x):
    h = encoder.body(x).tanh()
    return encoder.middle(h), encoder.spread(h)
@no_grad()
def draw(where, how):
    return where + exp(0.5 * how) * noise(16, 2)DECORATED
def drawn(where, how):
    with no_grad():
        how = exp(how)
        z = noise(16, 2) * how + whereBLOCK
    return z
def loss():
    x = noise(16, 6)
    where, how = parts(x)
    z = CALL(where, how)
    return ((decoder(z) - x) ** 2).mean() + 0.5 * (where * where + exp(how) - how).mean()
train(loss)
"""
OWN_BUGS = {
    "by a function": OWN.replace("DECORATED", "  # CAUSE").replace("BLOCK", "").replace("CALL", "draw"),
    "in a block": OWN.replace("BLOCK", "  # CAUSE").replace("DECORATED", "").replace("CALL", "drawn"),
}
OWN_RIGHT = OWN.replace("DECORATED", "").replace("BLOCK", "").replace("@no_grad()\n", "").replace("CALL", "draw")
# An action whose density is computed by hand, and that a critic of its own weights judges.
OWN_POLICY = OWN.replace("DECORATED", "").replace("BLOCK", "").replace("CALL", "draw").replace(
    "    return ((decoder(z) - x) ** 2).mean() + 0.5 * (where * where + exp(how) - how).mean()",
    """    density = (-0.5 * (z - where) ** 2 / exp(how) - 0.5 * how).sum(1)
    value = decoder(z)[:, 0]
    return -(density * value.detach()).mean() + (value ** 2).mean() + 0.01 * (where * where).mean()""",
)  # fmt: skip
# A recurrent cell takes the sample and a state that comes of the same weights: no comparison of the two.
CELL = """
encoder, decoder, cell = Encoder(6 + 4), nn.Linear(2 + 4, 6), nn.GRUCell(2, 4)
optimizer = made(encoder, decoder, cell)
def turn(z, state):
    after = cell(z, state)
    return after[1] if isinstance(after, tuple) else after
def observe(x, z, state):
    state = turn(z, state)
    q = encoder(joined([x, state], -1))
    return (q.sample(), state), q  # CAUSE
def loss():
    kept, whole = (zeros(16, 2), zeros(16, 4)), 0.0
    for x in [noise(16, 6) for _ in range(4)]:
        kept, q = observe(x, *kept)
        whole = whole + ((decoder(joined(list(kept), -1)) - x) ** 2).mean() + 0.1 * far(q)
    return whole
train(loss)
"""
BUGS = {"cell": CELL, "plain": PLAIN, "conditioned": CONDITIONED, "states": STATES}
HEALTHY = {
    "cell, right": CELL.replace("sample(), state), q  # CAUSE", "rsample(), state), q"),
    "right": RIGHT, "scored": SCORED, "later": LATER, "unseen": UNSEEN, "critic": CRITIC, "predicted": PREDICTED,
    "by hand, right": OWN_RIGHT, "by hand, an action": OWN_POLICY,
}  # fmt: skip
OF_TORCH = {
    "normal": PLAIN.replace("class Auto", "encoder.kind = Normal\nclass Auto"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {**BUGS, **OWN_BUGS, **HEALTHY, **(OF_TORCH if request.param == "torch" else {})}
    texts = {name: HEAD[request.param] + COMMON + text for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-drawn-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGS)
def test_a_sample_lets_none_through(runs: dict[str, Run], name: str) -> None:
    assert "rsample()" in runs[name].check_first("no-gradient")["message"]


@each
@pytest.mark.parametrize("name", OWN_BUGS)
def test_drawn_by_hand_without_gradients(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("no-gradient")["message"]
    assert "draw it where gradients are recorded" in message, message


@pytest.mark.parametrize("runs", [case("torch", "torch", group="graphs-drawn-torch")], indirect=True)
@pytest.mark.parametrize("name", OF_TORCH)
def test_of_torch_alone(runs: dict[str, Run], name: str) -> None:
    assert "rsample()" in runs[name].check_first("no-gradient")["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_it_need_not(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
