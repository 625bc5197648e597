"""A reconstruction that is a mean over features beside a divergence that is a sum over a code's axes. Witness: whether
the divergence of the trained model, by its formula and the framework's own numbers, is less than 0.1."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence
fw.manual_seed(0)
Module, randn, rand = nn.Module, fw.randn, fw.rand
def adam(*nets):
    optimizer = fw.optim.Adam([each for net in nets for each in net.parameters()], 0.01)
    return optimizer, optimizer.zero_grad
def real(value):
    return value.float()
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
from paddle.distribution import Normal, kl_divergence
fw.seed(0)
Module = nn.Layer
def randn(*shape):
    return fw.randn(shape)
def rand(*shape):
    return fw.rand(shape)
def adam(*nets):
    optimizer = fw.optimizer.Adam(0.01, parameters=[each for net in nets for each in net.parameters()])
    return optimizer, optimizer.clear_grad
def real(value):
    return value.astype("float32")
""",
}
VAE = """
class Vae(Module):
    def __init__(self):
        super().__init__()
        self.into, self.mu, self.logvar = nn.Linear(64, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.out, self.last = nn.Linear(4, 16), nn.Linear(16, 64)

    def forward(self, x):
        h = F.tanh(self.into(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + fw.exp(0.5 * logvar) * randn(x.shape[0], 4)
        return self.last(F.tanh(self.out(z))), mu, logvar

def divergence(mu, logvar):
    return (-0.5 * (1 + logvar - mu ** 2 - fw.exp(logvar)).sum(1)).mean()

net = Vae()
optimizer, clear = adam(net)
data = real(rand(4, 64) > 0.5)
for at in range(52):
    x = data.tile([8, 1])
    out, mu, logvar = net(x)
    BODY
    clear()
    loss.backward()
    optimizer.step()
with fw.no_grad():
    print("collapsed:", bool(divergence(*net(x)[1:]) < 0.1))
"""
OTHER = """
net, gate = nn.Linear(32, 40), nn.Linear(32, 1)
optimizer, clear = adam(net, gate)
x, y = randn(16, 32), randn(16, 20)
for at in range(52):
    out, open = net(x), gate(x)
    BODY
    clear()
    (loss + 1e-4 * open.square().mean()).backward()
    optimizer.step()
print("done")
"""
BCE = "recon = F.binary_cross_entropy_with_logits(out, x)  # CAUSE"
MEAN = "recon = F.binary_cross_entropy_with_logits(out, x)"
MSE = "recon = F.mse_loss(out, x)  # CAUSE"
KL = "kl = divergence(mu, logvar)"
SUM = "kl = -0.5 * (1 + logvar - mu ** 2 - fw.exp(logvar)).sum()"
BOTH = "loss = recon + kl"


def vae(*lines: str) -> str:
    return VAE.replace("BODY", "\n    ".join(lines))


def other(*lines: str) -> str:
    return OTHER.replace("BODY", "\n    ".join(lines))


BUGGY = {
    "scores": vae(BCE, KL, BOTH),
    "by the batch's size": vae(MSE, f"{SUM} / x.shape[0]", BOTH),
    "by the batch's length": vae(MSE, f"{SUM} / len(x)", BOTH),
    "a module": vae("recon = nn.MSELoss()(out, x)  # CAUSE", KL, BOTH),
    "mean by its name": vae("recon = F.mse_loss(out, x, reduction='mean')  # CAUSE", KL, BOTH),
    "absolute": vae("recon = F.l1_loss(out, x)  # CAUSE", KL, BOTH),
    "the divergence first": vae(BCE, KL, "loss = kl + recon"),
    "the other sign": vae(BCE, "kl = 0.5 * (logvar.exp() + mu.pow(2) - 1.0 - logvar).sum(1).mean()", BOTH),
    "functions": vae(BCE, "kl = fw.mean(-0.5 * fw.sum(1 + logvar - mu ** 2 - fw.exp(logvar), 1), 0)", BOTH),
    "of the deviation": vae(BCE, "sigma = fw.exp(0.5 * logvar)",
                            "kl = (0.5 * (sigma ** 2 + mu ** 2 - 1) - fw.log(sigma)).sum(1).mean()", BOTH),
    "a weight of 1": vae(BCE, KL, "beta = 1.0", "loss = recon + beta * kl"),
    "pictures": vae("recon = F.mse_loss(out.reshape([-1, 1, 8, 8]), x.reshape([-1, 1, 8, 8]))  # CAUSE", KL, BOTH),
    "in a function": """
def loss_of(out, x, mu, logvar):
    recon = F.binary_cross_entropy_with_logits(out, x)  # CAUSE
    return recon - 0.5 * fw.mean(fw.sum(1 + logvar - mu.pow(2) - logvar.exp(), 1)) * 1
""".replace("recon - 0.5 * fw.mean(", "recon + -0.5 * fw.mean(") + vae("loss = loss_of(out, x, mu, logvar)"),
    "probabilities": vae("recon = F.binary_cross_entropy(F.sigmoid(out), x)  # CAUSE", KL, BOTH),
    "a square by hand": vae(BCE, "kl = -0.5 * (1 + logvar - mu * mu - fw.exp(logvar)).sum(1).mean()", BOTH),
    "a square by a function": vae(BCE, "kl = -0.5 * (1 + logvar - fw.square(mu) - fw.exp(logvar)).sum(1).mean()", BOTH),
    "of distributions": vae(BCE, "code, prior = Normal(mu, fw.exp(0.5 * logvar)), Normal(fw.zeros_like(mu), "
                            "fw.ones_like(mu))", "kl = kl_divergence(code, prior).sum(1).mean()", BOTH),
    "of a logarithm of the deviation": vae(BCE, "log = 0.5 * logvar", "kl = (-0.5 + 0.5 * (fw.exp(2 * log) + mu ** 2) "
                                           "- log).sum(1).mean()", BOTH),
    "more added": vae(BCE, KL, "loss = recon + kl + 1e-4 * (net.last.weight ** 2).sum()"),
    "added up before": vae(BCE, KL, "loss = 0.0", "loss = loss + recon", "loss = loss + kl"),
    "taken away": vae(BCE, "loss = recon - 0.5 * (1 + logvar - mu ** 2 - fw.exp(logvar)).sum(1).mean()"),
    "squares by hand": vae("recon = ((out - x) ** 2).mean()  # CAUSE", KL, BOTH),
    "squares by a method": vae("recon = (out - x).square().mean()  # CAUSE", KL, BOTH),
    "summed over the batch, too": vae(MSE, SUM, BOTH),
}  # fmt: skip
HEALTHY = {
    "both summed": vae("recon = F.binary_cross_entropy_with_logits(out, x, reduction='sum') / x.shape[0]", KL, BOTH),
    "both summed, by samples": vae("recon = F.binary_cross_entropy_with_logits(out, x, reduction='none')",
                                   "recon = recon.sum(1).mean()", KL, BOTH),
    "squares summed by hand": vae("recon = ((out - x) ** 2).sum(1).mean()", KL, BOTH),
    "a small weight": vae(MEAN, KL, "loss = recon + 0.001 * kl"),
    "a small weight before": vae(MEAN, f"{KL} * 0.001", BOTH),
    "a small weight inside": vae(MEAN, "kl = (-0.0005 * (1 + logvar - mu ** 2 - fw.exp(logvar)).sum(1)).mean()", BOTH),
    "by the features": vae(MEAN, f"{KL} / 640", BOTH),
    "times the features": vae(f"{MEAN} * x.shape[1]", KL, BOTH),
    "times the features at last": vae(MEAN, KL, "loss = 64 * recon + kl"),
    "annealed": vae(MEAN, KL, "loss = recon + 0.001 * min(1.0, (at + 1) / 20) * kl"),
    "annealed from 0": vae(MEAN, KL, "loss = recon + 0.001 * min(1.0, at / 20) * kl"),
    "annealed after a while": vae(MEAN, KL, "weight = 0.0 if at < 40 else 0.001", "loss = recon + weight * kl"),
    "a weight that is a tensor": vae(MEAN, KL, "weight = fw.full([], 0.001)", "loss = recon + weight * kl"),
}  # fmt: skip
# A divergence with a weight of its own, as with a mean of its own, and what is no divergence.
OTHERS = {
    "four times": vae(MEAN, KL, "loss = recon + 4.0 * kl"),
    "both means": vae(MEAN, "kl = -0.5 * (1 + logvar - mu ** 2 - fw.exp(logvar)).mean()", BOTH),
    "a likelihood": other("mean, logvar = out[:, :20], out[:, 20:]",
                          "loss = F.mse_loss(mean, y) + (0.5 * (logvar + (y - mean) ** 2 / fw.exp(logvar))).mean()"),
    "a likelihood by torch": other("loss = F.gaussian_nll_loss(out[:, :20], y, fw.exp(out[:, 20:])) + "
                                   "F.mse_loss(out[:, :20], y)"),
    "pairs": other("one, two = F.normalize(out[:, :20]), F.normalize(out[:, 20:])", "near = fw.exp(one @ two.T / 0.5)",
                   "loss = F.mse_loss(out[:, :20], y) - fw.log(fw.diagonal(near) / near.sum(1)).mean()"),
    "a temperature": other("heat = fw.exp(open)", "loss = F.mse_loss(out[:, :20] * heat, y)"),
    "by a softplus": other("loss = F.mse_loss(out[:, :20], y) + fw.log(1 + fw.exp(-out[:, 20:])).sum(1).mean()"),
    "a likelihood, summed": other(
        "mean, logvar = out[:, :20], out[:, 20:]",
        "loss = F.mse_loss(mean, y) + (0.5 * (logvar + (y - mean) ** 2 * fw.exp(-logvar))).sum(1).mean()"),
    "a likelihood by the deviation": other(
        "mean, scale = out[:, :20], F.softplus(out[:, 20:]) + 0.1",
        "nll = (fw.log(scale) + 0.5 * ((y - mean) / scale) ** 2).sum(1).mean()",
        "loss = F.mse_loss(mean, y) + nll"),
    "a likelihood by squares": other(
        "mean, scale = out[:, :20], F.softplus(out[:, 20:]) + 0.1",
        "nll = (fw.log(scale ** 2) + (y - mean) ** 2 / scale ** 2).sum(1).mean()",
        "loss = F.mse_loss(mean, y) + 0.5 * nll"),
    "few that count": other("loss = F.mse_loss(out[:, :20], y)", "loss = loss + (out[:, 20:] ** 2).sum()"),
    "counts": other("logs = out[:, 20:]", "nll = (fw.exp(logs) - y.abs() * logs).sum(1).mean()",
                    "loss = F.mse_loss(out[:, :20], y) + nll"),
    "a flow": other("scale = 0.1 * out[:, 20:]", "z = y * fw.exp(scale) + out[:, :20]",
                    "loss = F.mse_loss(out[:, :20], y) + (0.5 * z ** 2 - scale).sum(1).mean()"),
    "an entropy that goes to 0": other(
        "logs = F.log_softmax(10 * out[:, 20:24], -1)", "entropy = -(fw.exp(logs) * logs).sum(1).mean()",
        "loss = F.mse_loss(out[:, :20], y) + entropy"),
    "gates that close": other("closed = fw.exp(10 * open - 2)", "loss = F.mse_loss(out[:, :20], y) + "
                              "closed.sum(1).mean()"),
}  # fmt: skip
FAULTS: dict[str, str] = {}


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY | OTHERS
    return {name: HEAD[framework] + part for name, part in parts.items()}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"weighed-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, FAULTS)
def test_a_mean_beside_a_sum(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "collapsed: True\n" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "warning" and "a mean over 64 features to" in first["message"], first
    assert "and went to" in first["message"] and len(run.told) == 1, run


@each
@named(HEALTHY, FAULTS)
def test_both_of_one_scale(runs: dict[str, Run], name: str) -> None:
    assert "collapsed: False\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@named(OTHERS, FAULTS)
def test_what_is_no_such_divergence(runs: dict[str, Run], name: str) -> None:
    assert "collapsed: True\n" in runs[name].plain or "done\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
