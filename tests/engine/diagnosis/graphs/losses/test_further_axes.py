"""Losses of [N, 1, H] against [N, H], and of masks of [N, 1, H, W] against [N, H, W]: every one meets every other; and
what looks so. Witness: the same loss of the two brought to one shape, which the program prints beside it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.nn import functional as F
fw.manual_seed(0)
noise, conv = fw.randn, nn.Conv2d
def sgd(net):
    return fw.optim.SGD(net.parameters(), 0.05), "zero_grad"
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.nn import functional as F
fw.seed(0)
noise, conv = lambda *shape: fw.randn(shape), nn.Conv2D
def sgd(net):
    return fw.optimizer.SGD(0.05, parameters=net.parameters()), "clear_grad"
""",
}
TRAIN = """
optimizer, clear = sgd(net)
for step in range(3):
    x = noise(6, 1, 5, 5) if maps else noise(6, 4)
    loss, meant = losses(x)
    print("as meant" if abs(float(loss) - float(meant)) < 1e-5 else "not as meant")
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
# A forecast of five steps ahead, [6, 1, 5].
SERIES = """
maps, net = False, nn.Linear(4, 5)
def losses(x):
    found = net(x).unsqueeze(1)
    target = x[:, :1] * 2 + x
    target = fw.concat([target, x[:, :1]], 1)
BODY
"""
# Masks of [6, 1, 5, 5].
MASKS = """
maps, net = True, conv(1, 1, 3, padding=1)
def losses(x):
    found = net(x)
    target = x[:, 0] * 0.5
BODY
"""


def program(text: str, body: str) -> str:
    return text.replace("BODY", "\n".join("    " + line for line in body.strip().splitlines())) + TRAIN


BUGGY = {
    "series, minus": program(SERIES, """
apart = found - target  # CAUSE
return (apart ** 2).mean(), ((found[:, 0] - target) ** 2).mean()
"""),
    "series, mse": program(SERIES, """
return F.mse_loss(found, target), F.mse_loss(found[:, 0], target)  # CAUSE
"""),
    "series, the target is longer": program(SERIES, """
target = target.reshape([6, 1, 5])
found = found.reshape([6, 5])
return F.l1_loss(found, target), F.l1_loss(found, target[:, 0])  # CAUSE
"""),
    "masks, minus": program(MASKS, """
size = (found - target).abs()  # CAUSE
return size.sum() / 150, (found[:, 0] - target).abs().sum() / 150
"""),
    "masks, l1": program(MASKS, """
return F.l1_loss(found, target), F.l1_loss(found[:, 0], target)  # CAUSE
"""),
    "masks, mse": program(MASKS, """
meant = F.mse_loss(found.squeeze(1), target)
loss = F.mse_loss(found, target)  # CAUSE
return loss, meant
"""),
}  # fmt: skip
HEALTHY = {
    "pairs on one line": program(SERIES, """
near = (found[:, 0].unsqueeze(1) - target).pow(2).mean()
return near, near
"""),
    "one shape": program(SERIES, """
loss = (found - target.unsqueeze(1)).square().mean()
return loss, F.mse_loss(found, target.unsqueeze(1))
"""),
    "a row for all": program(SERIES, """
loss = (found[:, 0] - target.mean(0, keepdim=True)).square().mean() + (found[:, 0] - target.mean(0)).square().mean()
return loss, 2 * F.mse_loss(found[:, 0], target.mean(0, keepdim=True).expand([6, 5]))
"""),
    # Which of six others lies nearest, as in prototypical networks.
    "distances": program(SERIES, """
apart = (found - target).square().sum(-1)
loss = -F.log_softmax(-apart, -1).diagonal().mean()
return loss, F.cross_entropy(-apart, fw.arange(6))
"""),
    "masks of one shape": program(MASKS, """
loss = F.l1_loss(found, target.unsqueeze(1))
return loss, (found[:, 0] - target).abs().mean()
"""),
    # One mask for all channels and rows.
    "masks of one picture": program(MASKS, """
loss = (found - target[0]).square().mean()
return loss, (found[:, 0] - target[:1]).square().mean()
"""),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {f"buggy {name}": text for name, text in BUGGY.items()}
    texts |= {f"healthy {name}": text for name, text in HEALTHY.items()}
    texts = {name: HEAD[request.param] + text for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-further-axes-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_every_one_against_every_other(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy {name}"]
    assert run.plain.splitlines()[:3] == ["not as meant"] * 3, run.plain
    first = run.check_first("loss-broadcast")
    sizes = "[6, 1, 5, 5] and [6, 5, 5]" if name.startswith("masks") else "[6, 1, 5]"
    assert sizes in first["message"], first["message"]
    # What an unsqueeze or a reshape of the program gave its axis may be meant to meet every other one.
    # The difference of vectors that the program takes itself may be meant of all pairs.
    expected = "note" if name == "series, minus" else "error" if name.startswith("masks") else "warning"
    assert first["severity"] == expected, first
    assert len(run.above_notes()) == (expected != "note"), str(run)


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy {name}"]
    assert run.plain.splitlines()[:3] == ["as meant"] * 3, run.plain
    run.check_healthy()
