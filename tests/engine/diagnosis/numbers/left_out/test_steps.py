"""Losses that are not finite, of bad data in some batches, whose backward runs and whose step the program leaves out: a
note while training goes on. Witness: the weights at the end, which the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import math
import torch as fw
from torch import nn
fw.manual_seed(0)
noise, whole, clipped = fw.randn, fw.tensor, nn.utils.clip_grad_norm_
def made(net):
    return fw.optim.SGD(net.parameters(), lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
import math
import paddle as fw
from paddle import nn
fw.seed(0)
noise, whole, clipped = lambda *shape: fw.randn(shape), fw.to_tensor, nn.utils.clip_grad_norm_
def made(net):
    return fw.optimizer.SGD(0.01, parameters=net.parameters())
def clear(optimizer):
    optimizer.clear_grad()
""",
}
# A batch without any event has a rate of log(0).
RATES = """
def loss_of(net, x, count):
    rate = fw.log(whole([count]))MARK
    return (net(x) - rate).square().mean()
"""
# A batch in which all are alike has a spread of 0.
SPREADS = """
def loss_of(net, x, count):
    spread = (x * min(count, 1.0)).std()
    scaled = (x - x.mean()) * min(count, 1.0) / spreadMARK
    return (net(scaled) - x[:, :1]).square().mean()
"""
# Roots of what is below 0.
ROOTS = """
def loss_of(net, x, count):
    depth = whole([count - 1.0])
    return (net(x).square().mean() + fw.sqrt(depth)).squeeze()MARK
"""
NORM = """
def train(net, optimizer, batches):
    for x, count in batches:
        loss = loss_of(net, x, count)
        loss.backward()
        norm = float(clipped(net.parameters(), 5.0))
        if math.isfinite(norm):
            optimizer.step()
        clear(optimizer)
"""
EACH = """
def usable(net):
    return all(bool(fw.isfinite(each.grad).all()) for each in net.parameters())
def one(net, optimizer, x, count):
    clear(optimizer)
    loss_of(net, x, count).backward()
    if not usable(net):
        return 0
    optimizer.step()
    return 1
def train(net, optimizer, batches):
    print(sum(one(net, optimizer, x, count) for x, count in batches), "steps")
"""
LATER = """
def train(net, optimizer, batches):
    seen = []
    for x, count in batches:
        loss = loss_of(net, x, count)
        seen.append(loss.item())
        clear(optimizer)
        loss.backward()
        if math.isnan(seen[-1]) or math.isinf(seen[-1]):
            print("left out")
            continue
        optimizer.step()
"""
STEPS = """
def train(net, optimizer, batches):
    for x, count in batches:
        loss = loss_of(net, x, count)
        clear(optimizer)
        loss.backward()
        optimizer.step()
"""
RUN = """
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = made(net)
train(net, optimizer, [(noise(8, 4), count) for count in COUNTS])
print("weights", "finite" if bool(fw.isfinite(net[0].weight).all()) else "spoilt")
"""
ONE, SEVERAL = [2.0, 3.0, 0.0, 1.0, 2.0], [2.0, 0.0, 1.0, 3.0, 0.0, 0.0, 3.0, 1.0, 0.0, 2.0]


def program(loss: str, train: str, counts: list[float], mark: str = "  # CAUSE") -> str:
    return loss.replace("MARK", mark) + train + RUN.replace("COUNTS", repr(counts))


NOTES = {
    "norm": program(RATES, NORM, ONE), "each gradient": program(SPREADS, EACH, SEVERAL),
    "the loss, later": program(ROOTS, LATER, SEVERAL), "spread out": program(RATES, NORM, [1.0, 0.0, 2.0] * 9),
    "every other one": program(RATES, NORM, [1.0, 0.0] * 9 + [1.0]),
    "cleared by hand": program(RATES, NORM.replace("clear(optimizer)", "[BY_HAND for each in net.parameters()]"), ONE),
}  # fmt: skip
ERRORS = {
    "stepped": program(RATES, STEPS, ONE),
    # The norm is looked at, and only told.
    "stepped all the same": program(SPREADS, NORM.replace("if math.isfinite(norm):", "if norm < 0 or True:"), ONE),
    "in a row": program(ROOTS, LATER, [2.0, 1.0] + [0.0] * 9 + [2.0, 1.0]),
    "in a row, by each": program(SPREADS, EACH, [2.0] + [0.0] * 12),
    "the end": program(RATES, NORM.replace("        clear", "            clear"), [2.0, 3.0, 1.0, 0.0]),
    "it gives up": program(ROOTS, LATER.replace("continue", "break"), ONE),
}  # fmt: skip
HEALTHY = {
    "norm": program(RATES, NORM, [2.0, 3.0, 4.0, 1.0, 2.0], ""),
    # A gradient, of one number, that is too large for float16, and is looked at as one.
    "looked at in half": program(
        RATES,
        NORM.replace("norm = float(clipped(net.parameters(), 5.0))", """for each in net.parameters():
            each.grad.GIVE(each.grad * 1e6)
        sent = [each.grad.HALF for each in net.parameters()]
        largest = max(abs(each.numpy()).max() for each in sent)
        for each in net.parameters():
            each.grad.GIVE(each.grad / 1e6)
        norm = 1.0 if largest else math.inf"""), [2.0, 3.0, 4.0, 1.0, 2.0], "",
    ),
}  # fmt: skip
WORDS = {
    "torch": {"HALF": "half()", "GIVE": "copy_", "BY_HAND": 'setattr(each, "grad", None)'},
    "paddle": {"HALF": 'astype("float16")', "GIVE": "set_value", "BY_HAND": "each.clear_gradient()"},
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {f"note, {name}": text for name, text in NOTES.items()}
    texts |= {f"error, {name}": text for name, text in ERRORS.items()}
    texts = {name: HEAD[request.param] + text for name, text in (texts | HEALTHY).items()}
    for word, meant in WORDS[request.param].items():
        texts = {name: text.replace(word, meant) for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-left-out-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", NOTES)
def test_an_iteration_that_is_left_out_is_a_note(runs: dict[str, Run], name: str) -> None:
    run = runs[f"note, {name}"]
    assert "weights finite" in run.plain, run.plain
    run.check_healthy("nonfinite")
    first = run.check_first("nonfinite")
    assert "training went on" in first["evidence"][-1], first["evidence"]


@each
@pytest.mark.parametrize("name", ERRORS)
def test_what_is_not_left_out_or_too_often(runs: dict[str, Run], name: str) -> None:
    run = runs[f"error, {name}"]
    assert ("weights spoilt" in run.plain) == name.startswith("stepped"), run.plain
    first = run.check_first("nonfinite")
    assert first["severity"] == "error", first
    assert name.startswith("in a row") == ("in a row were left out" in first["evidence"][-1]), first["evidence"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_finite_losses(runs: dict[str, Run], name: str) -> None:
    assert "weights finite" in runs[name].plain, runs[name].plain
    runs[name].check_healthy()
