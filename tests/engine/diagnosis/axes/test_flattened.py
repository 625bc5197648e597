"""Predictions of steps and rows, and targets of rows and steps, both flattened and compared. Witness: the loss with one
of them transposed first, which the program prints beside it."""

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
noise = fw.randn
def turned(x):
    return x.transpose(0, 1)
def sgd(net):
    return fw.optim.SGD(net.parameters(), lr=0.05)
def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.nn import functional as F
fw.seed(0)
noise = lambda *shape: fw.randn(shape)
def turned(x):
    return fw.transpose(x, [1, 0] + list(range(2, x.ndim)))
def sgd(net):
    return fw.optimizer.SGD(0.05, parameters=net.parameters())
def clear(optimizer):
    optimizer.clear_grad()
""",
}
FIT = """
net = nn.Linear(3, 4)
optimizer = sgd(net)
for step in range(6):
    x = noise(5, 8, 3)  # steps first
    logits, tags = net(x), turned(x).argmax(-1)
    loss, meant = of(logits, tags)
    print("as meant" if abs(float(loss) - float(meant)) < 1e-5 else "not as meant")
    loss.backward()
    optimizer.step()
    clear(optimizer)
"""
BUGGY = {
    "classes": """
def of(logits, tags):
    return (F.cross_entropy(logits.reshape([-1, 4]), tags.reshape([-1])),  # CAUSE
            F.cross_entropy(turned(logits).reshape([-1, 4]), tags.reshape([-1])))
""",
    "in two lines": """
def of(logits, tags):
    rows = logits.reshape([40, 4])
    wanted = tags.flatten()  # CAUSE
    return F.cross_entropy(rows, wanted), F.cross_entropy(rows, turned(tags).flatten())
""",
}  # fmt: skip
HEALTHY = {
    "transposed": BUGGY["classes"].replace("logits.reshape([-1, 4])", "turned(logits).reshape([-1, 4])"),
    "the targets transposed": """
def of(logits, tags):
    loss = F.cross_entropy(logits.reshape([-1, 4]), turned(tags).reshape([-1]))
    return loss, loss
""",
    # All of one class, as in a contrast with what stands first.
    "one class": """
def of(logits, tags):
    loss = F.cross_entropy(logits.reshape([-1, 4]), (tags * 0).reshape([-1]))
    return loss, loss
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text + FIT for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-flattened-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_rows_meet_those_of_other_places(runs: dict[str, Run], name: str) -> None:
    assert "not as meant" in runs[name].plain
    found = runs[name].check_first("wrong-axis")
    assert found["severity"] == "error" and "[5, 8]" in found["message"] and "[8, 5]" in found["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_the_same_order(runs: dict[str, Run], name: str) -> None:
    assert "not as meant" not in runs[name].plain
    runs[name].check_healthy()
