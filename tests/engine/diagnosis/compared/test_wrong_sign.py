"""Terms of the wrong sign. Witness: the divergence by its numbers, which is never below 0."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def step(loss: str) -> str:
    return f"""
optimizer = Sgd(net.parameters(), 0.01)
x = noise(32, 6)
for step in range(9):
{loss}
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""


VAE = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.mu, self.var, self.out = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 6)
net = Net()
"""


def vae(kl: str, loss: str, z: str = "mu + noise(32, 4) * fw.exp(0.5 * logvar)") -> str:
    return VAE + step(f"""    mu, logvar = net.mu(x), net.var(x)
    z = {z}
    kl = {kl}
    print("kl", step, float(kl) >= 0)
    loss = {loss}""")


RIGHT = "-0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()"
SUM = "(net.out(z) - x).square().mean() + 0.1 * kl"
KL = {
    "no minus": vae("0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()  # CAUSE", SUM),
    "subtracted": vae(RIGHT, "(net.out(z) - x).square().mean() - 0.1 * kl  # CAUSE"),
    "turned round": vae(
        "0.5 * (1 + logvar - mu.pow(2) - fw.exp(logvar)).mean()  # CAUSE", SUM.replace("0.1 * kl", "kl")
    ),
    "a divisor": vae("(mu.pow(2) + logvar.exp() - 1 - logvar).mean() / -2.0  # CAUSE", SUM),
}
POLICY = """
net = nn.Linear(6, 3)
rewards = fw.zeros([32])
"""


def policy(loss: str) -> str:
    return POLICY + step(f"""    log_probs = F.log_softmax(net(x), -1)
    action = x[:, :3].argmax(1)
    log_prob = (log_probs * F.one_hot(action, 3)).sum(-1)
    advantage = (x[:, 0] > 0) * 2.0 - 1.0
    cost = advantage
{loss}""")


PAID = {
    "a product": policy("    loss = (log_prob * advantage).mean()  # CAUSE"),
    "two statements": policy("    gain = log_prob * advantage  # CAUSE\n    loss = gain.mean()"),
    "with a bonus": policy("    loss = (log_prob * advantage).mean() + 0.01 * log_probs.square().mean()  # CAUSE"),
}
SCALES = {
    "a logarithm": vae(RIGHT, SUM, "mu + noise(32, 4) * logvar  # CAUSE"),
    "half of it": vae(RIGHT, SUM, "mu + fw.randn_like(mu) * logvar  # CAUSE"),
    "the other way round": vae(RIGHT, SUM, "logvar * noise(32, 4) + mu  # CAUSE"),
}
OVERLAP = """
net = nn.Linear(6, 8)
def dice(p, y):
    inter = (p * y).sum(-1)
    return (2 * inter + 1) / (p.sum(-1) + y.sum(-1) + 1)MARK
"""


def overlap(loss: str, mark: str = "  # CAUSE") -> str:
    lines = "    y = (fw.matmul(x, fw.ones([6, 8])) + fw.arange(8.0) - 4 > 0) * 1.0\n"
    return OVERLAP.replace("MARK", mark) + step(f"{lines}    share = dice(fw.sigmoid(net(x)), y)\n    {loss}")


SMALL = {
    "a mean": overlap("loss = share.mean()"),
    "beside another": overlap("loss = F.binary_cross_entropy_with_logits(net(x), y) + share.mean()"),
    "half of it": overlap("loss = 0.5 * share.sum()"),
}
RATIO = """    old = log_prob.detach() * 1.0
    ratio = fw.exp(RATIO)  # CAUSE
    clipped = ratio.clip(0.8, 1.2)
    loss = -fw.minimum(ratio * advantage, clipped * advantage).mean()"""
TURNED = {
    "a ratio": policy(RATIO.replace("RATIO", "old - log_prob")),
    "one that is not clipped": policy(
        "    ratio = fw.exp(log_prob.detach() - log_prob)  # CAUSE\n    loss = -(ratio * advantage).mean()"
    ),
    "of a sum": policy(
        "    ratio = fw.exp(log_prob.detach() - log_prob)  # CAUSE\n"
        "    gain = ratio * advantage\n    loss = 1.0 - gain.mean()"
    ),
}
BONUS = """    entropy = -(log_probs * fw.exp(log_probs)).sum(-1)
    loss = -(log_prob * advantage).mean() SIGN 0.01 * entropy.mean()"""
CERTAIN = {
    "added": policy(BONUS.replace("SIGN", "+") + "  # CAUSE"),
    "beside another term": policy(
        BONUS.replace("SIGN 0.01 * entropy.mean()", "+ 0.5 * log_probs.square().mean() + 0.01 * entropy.mean()")
        + "  # CAUSE"
    ),
    "by a factor": policy(BONUS.replace("SIGN 0.01 * entropy.mean()", "+ (0.1 * entropy).mean()  # CAUSE")),
    "a term of its own": policy(
        BONUS.replace(
            "loss = -(log_prob * advantage).mean() SIGN 0.01 * entropy.mean()",
            "bonus = 0.01 * entropy.mean()  # CAUSE\n    loss = bonus - (log_prob * advantage).mean()",
        )
    ),
}
HEALTHY = {
    "a divergence": vae(RIGHT, SUM),
    "turned twice": vae(
        "0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1).mean()", "(net.out(z) - x).square().mean() - 0.1 * kl"
    ),
    "without a minus": vae("0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()", SUM),
    "a dice loss": overlap("loss = 1.0 - share.mean()", ""),
    "a negative overlap": overlap("loss = -share.mean()", ""),
    "a ratio": policy(RATIO.replace("RATIO", "log_prob - old").replace("  # CAUSE", "")),
    "a bonus": policy(BONUS.replace("SIGN", "-")),
    "a bonus beside another term": policy(
        BONUS.replace("SIGN 0.01 * entropy.mean()", "+ 0.5 * log_probs.square().mean() - 0.01 * entropy.mean()")
    ),
    "a policy beside a mask": policy(
        "    mask = (x[:, 0] > 0) * 1.0\n"
        "    loss = -(log_prob * advantage).mean() + (mask * log_probs.square().mean(-1)).mean()"
    ),
    "a policy": policy("    loss = -(log_prob * advantage).mean()"),
    "a sum that is subtracted": policy("    gain = (log_prob * advantage).mean()\n    loss = 0.5 - gain"),
    "a cost": policy("    loss = (log_prob * cost).mean()"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"kl, {name}": part for name, part in KL.items()}
    parts |= {f"policy, {name}": part for name, part in PAID.items()}
    parts |= {f"scale, {name}": part for name, part in SCALES.items()}
    parts |= {f"small, {name}": part for name, part in SMALL.items()}
    parts |= {f"turned, {name}": part for name, part in TURNED.items()}
    parts |= {f"certain, {name}": part for name, part in CERTAIN.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"sign-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(KL, {})
def test_a_divergence_of_the_wrong_sign(runs: dict[str, Run], name: str) -> None:
    run = runs[f"kl, {name}"]
    assert ("kl 8 True" in run.plain) is (name == "subtracted"), run
    first = run.check_first("wrong-sign")
    assert first["severity"] == "error" and "no lower bound" in first["message"], first


@each
@named(PAID, {})
def test_a_policy_of_the_wrong_sign(runs: dict[str, Run], name: str) -> None:
    first = runs[f"policy, {name}"].check_first("wrong-sign")
    assert "a minus is missing" in first["message"], first


@each
@named(SCALES, {})
def test_a_logarithm_as_a_deviation(runs: dict[str, Run], name: str) -> None:
    assert runs[f"scale, {name}"].check_first("log-scale")["severity"] == "error"


@each
@named(SMALL, {})
def test_an_overlap_that_is_made_small(runs: dict[str, Run], name: str) -> None:
    assert "1 less it is meant" in runs[f"small, {name}"].check_first("wrong-sign")["message"]


@each
@named(TURNED, {})
def test_a_ratio_that_is_turned_round(runs: dict[str, Run], name: str) -> None:
    assert "is turned round" in runs[f"turned, {name}"].check_first("wrong-sign")["message"]


@each
@named(CERTAIN, {})
def test_an_entropy_that_is_made_small(runs: dict[str, Run], name: str) -> None:
    assert "a bonus is subtracted" in runs[f"certain, {name}"].check_first("wrong-sign")["message"]


@each
@named(HEALTHY, {})
def test_signs_that_are_right(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert not [found for found in run.every if found["kind"] in ("wrong-sign", "log-scale")], run
