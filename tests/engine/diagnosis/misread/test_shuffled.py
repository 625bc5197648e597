"""Inputs and labels shuffled by two permutations, losses that count padding, attentions saturated from the start, seeds
that are the same in each forward, losses that add up undivided until training diverges. Each program prints a witness
of its own: what is wrong with it by the framework's own numbers."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
randn, arange, grad, seed = fw.randn, fw.arange, fw.autograd.grad, fw.manual_seed
def whole(low, high, size):
    return fw.randint(low, high, size)
def adam(net, rate=0.01):
    optimizer = fw.optim.Adam(net.parameters(), rate)
    return optimizer, optimizer.zero_grad
def descent(net, rate):
    optimizer = fw.optim.SGD(net.parameters(), rate, momentum=0.9)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
arange, grad, seed = fw.arange, fw.grad, fw.seed
def randn(*shape):
    return fw.randn(shape)
def whole(low, high, size):
    return fw.randint(low, high, list(size))
def adam(net, rate=0.01):
    optimizer = fw.optimizer.Adam(rate, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def descent(net, rate):
    optimizer = fw.optimizer.Momentum(rate, 0.9, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
SHUFFLED = """
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer, clear = adam(net)
x = randn(64, 4)
y = x[:, :3].argmax(1)
for epoch in range(4):
    BODY
    for at in range(0, 64, 16):
        loss = F.cross_entropy(net(a[at:at + 16]), b[at:at + 16])
        loss.backward()
        optimizer.step()
        clear()
print("pairs:", bool((a[:, :3].argmax(1) == b).all()))
"""
COUNTED = """
words = whole(1, 12, (16, 10))
keep = (arange(10).unsqueeze(0) < whole(3, 7, (16, 1))).astype("int64") if hasattr(words, "astype") else (
    arange(10).unsqueeze(0) < whole(3, 7, (16, 1))).long()
words = words * keep
table, out = nn.Embedding(12, 8, padding_idx=0), nn.Linear(8, CLASSES)
net = nn.Sequential(table, out)
optimizer, clear = adam(net)
LOSS
for at in range(6):
    given, wanted = words[:, :-1], words[:, 1:]
    logits = out(table(given)).reshape([-1, CLASSES])
    labels = wanted.reshape([-1])
    BODY
    loss.backward()
    optimizer.step()
    clear()
print("padding:", int((words[:, 1:] == 0).sum()) > 40)
"""
PEAKED = """
q, k, v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
net = nn.Sequential(q, k, v)
optimizer, clear = adam(net, 0.001)
def weights(x):
    turned = k(x).transpose(-2, -1) if hasattr(fw, "manual_seed") else k(x).transpose([0, 2, 1])
    BODY
for at in range(12):
    x = randn(8, 12, 32)
    loss = (weights(x) @ v(x) - x.mean(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    clear()
print("peaked:", bool((weights(x).max(-1) if not hasattr(fw, "manual_seed") else weights(x).amax(-1)).mean() > 0.9))
"""
SEEDED = """
net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
optimizer, clear = adam(net)
data = randn(8, 8)
seen = set()
def noisy(x, number=0):
    BODY
    noise = fw.randn_like(x)
    seen.add(float(noise.sum()))
    return x + noise
for at in range(12):
    loss = (net(noisy(data)) - data).square().mean()
    loss.backward()
    optimizer.step()
    clear()
print("noises:", len(seen))
"""
SUMMED = """
net = nn.Linear(8, 1)
optimizer, clear = descent(net, RATE)
data, target = randn(256, 8), randn(256, 1)
for at in range(480):
    loss = (net(data) - target).square().mean()BY
    loss.backward()BACK
    if at % 8 == 7:
        optimizer.step()
        clear()
print("finite:", bool(fw.isfinite(loss)))
"""


def shuffled(*lines: str) -> str:
    return SHUFFLED.replace("BODY", "\n    ".join(lines))


def counted(*lines: str, loss: str = "", classes: str = "12") -> str:
    return COUNTED.replace("BODY", "\n    ".join(lines)).replace("LOSS", loss).replace("CLASSES", classes)


def peaked(*lines: str) -> str:
    return PEAKED.replace("BODY", "\n    ".join(lines))


def seeded(line: str, call: str = "") -> str:
    return SEEDED.replace("BODY", line).replace("noisy(data)", f"noisy(data{call})")


def summed(rate: str, by: str = "", back: str = "") -> str:
    return SUMMED.replace("RATE", rate).replace("BY", by).replace("BACK", back)


BUGGY = {
    "two permutations": (shuffled("a = x[fw.randperm(64)]", "b = y[fw.randperm(64)]  # CAUSE"), "loss-input"),
    "one of them named": (
        shuffled("order = fw.randperm(64)", "a = x[order]", "b = y[fw.randperm(64)]  # CAUSE"), "loss-input"),
    "both named": (
        shuffled("one, other = 1, 2", "first = fw.randperm(64)", "second = fw.randperm(64)", "a = x[first]",
                 "b = y[second]  # CAUSE"), "loss-input"),
    "padding is counted": (counted("loss = F.cross_entropy(logits, labels)  # CAUSE"), "padding-taken"),
    "padding is counted by a module": (
        counted("loss = score(logits, labels)", loss="score = nn.CrossEntropyLoss()  # CAUSE"), "padding-taken"),
    "another token is ignored": (
        counted("loss = F.cross_entropy(logits, labels, ignore_index=11)  # CAUSE"), "padding-taken"),
    "scores times the size": (
        peaked("scores = q(x) @ turned * 32  # CAUSE", "return F.softmax(scores, -1)"), "saturated-units"),
    "scores times the size, masked": (
        peaked("scores = (q(x) @ turned) * 32.0  # CAUSE", "scores = scores + fw.zeros([12, 12])",
               "return F.softmax(scores, -1)"), "saturated-units"),
    "seeded in each forward": (seeded("seed(0)  # CAUSE"), "repeated-random"),
    "seeded by a default": (seeded("seed(number)  # CAUSE"), "repeated-random"),
    "a sum of means": (summed("0.3", back="  # CAUSE"), "undivided"),
}  # fmt: skip
HEALTHY = {
    "one permutation": shuffled("order = fw.randperm(64)", "a, b = x[order], y[order]"),
    "two sets": shuffled("order = fw.randperm(64)", "a, b = x[order], y[order]", "c = x[fw.randperm(64)]"),
    "a part of another length": shuffled("a, b = x[arange(64)], y[arange(64)]", "c = x[fw.randperm(32)]"),
    "padding is ignored": counted("loss = F.cross_entropy(logits, labels, ignore_index=0)"),
    "padding is masked": counted(
        "each = F.cross_entropy(logits, labels, reduction='none')", "real = (labels != 0)",
        "real = real.astype('float32') if hasattr(real, 'astype') else real.float()",
        "loss = (each.reshape([-1]) * real).sum() / real.sum()"),
    "other classes": counted("loss = F.cross_entropy(logits, labels % 3)", classes="3"),
    "classes are weighed": counted("loss = F.cross_entropy(logits, labels, weight=fw.ones([12]))"),
    "scores divided": peaked("return F.softmax(q(x) @ turned / 32 ** 0.5, -1)"),
    "scores as they are": peaked("return F.softmax(q(x) @ turned, -1)"),
    "seeded by the iteration": seeded("seed(number)", ", at"),
    "seeded once": seeded("pass"),
    "a mean of means": summed("0.3", by=" / 8"),
    "a sum of means, a small rate": summed("0.002"),
}  # fmt: skip
WITNESS = {"pairs": "False", "padding": "True", "peaked": "True", "noises": "1", "finite": "False"}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {name: part for name, (part, _) in BUGGY.items()} | HEALTHY
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"shuffled-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_what_is_wrong_is_found(runs: dict[str, Run], name: str) -> None:
    word, value = _witness(runs[name])
    assert WITNESS[word] == value, runs[name]
    runs[name].check_first(BUGGY[name][1])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_right_is_not(runs: dict[str, Run], name: str) -> None:
    notes = ("undivided",) if name == "a sum of means, a small rate" else ()
    runs[name].check_healthy(*notes)


def _witness(run: Run) -> tuple[str, str]:
    line = next(each for each in run.plain.splitlines() if each.partition(":")[0] in WITNESS)
    word, _, value = line.partition(": ")
    return word, value
