"""Labels of 0 and 1 for losses whose labels are -1 and 1. Witness: of how many pairs the framework's own derivative of
that loss is 0 all over: those that are pushed nowhere."""

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
randn, made, grad = fw.randn, fw.tensor, fw.autograd.grad
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
def wanted(value):
    return value.detach().requires_grad_()
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
made, grad = fw.to_tensor, fw.grad
def randn(*shape):
    return fw.randn(shape)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def wanted(value):
    value = value.detach()
    value.stop_gradient = False
    return value
""",
}
START = """
one, other = randn(8, 6), randn(8, 6)
same = made(LABELS)
left, right = nn.Linear(6, 4), nn.Linear(6, 4)
optimizer, clear = sgd(nn.Sequential(left, right))
def loss_of(a, b):
    BODY
for at in range(5):
    loss = loss_of(left(one), right(other))
    loss.backward()
    optimizer.step()
    clear()
rows = wanted(left(one))
(given,) = grad([loss_of(rows, right(other).detach())], [rows])
print("pushed nowhere:", sum(not any(row) for row in given.tolist()))
"""
BITS = "[1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]"
SIGNS = "2 * made([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]) - 1"


def program(*lines: str, labels: str = BITS) -> str:
    return START.replace("made(LABELS)", labels if "made" in labels else f"made({labels})").replace(
        "BODY", "\n    ".join(lines)
    )


BUGGY = {
    "cosine": program("return F.cosine_embedding_loss(a, b, same, margin=-0.9)  # CAUSE"),
    "cosine, a module": program("return nn.CosineEmbeddingLoss(margin=-0.9)(a, b, same)  # CAUSE"),
    "cosine, whole numbers": program("return F.cosine_embedding_loss(a, b, same)  # CAUSE",
                                     labels="[1, 0, 1, 1, 0, 1, 0, 1]"),
    "ranking": program("x, y = a.sum(1), b.sum(1)",
                       "return F.margin_ranking_loss(x, y, same, margin=9.0)  # CAUSE"),
    "ranking, a module": program("x, y = a.sum(1), b.sum(1)",
                                 "return nn.MarginRankingLoss(9.0)(x, y, same)  # CAUSE"),
    "soft margin": program("return F.soft_margin_loss(a.sum(1), same) + b.square().mean()  # CAUSE"),
    "soft margin, a module": program("return nn.SoftMarginLoss()(a.sum(1), same) + b.square().mean()  # CAUSE"),
    "hinge": program("far = (a - b).square().mean(1)",
                     "return F.hinge_embedding_loss(far, same, margin=99.0)  # CAUSE"),
    "hinge, labels named": {
        "torch": program("far = (a - b).square().mean(1)",
                         "return F.hinge_embedding_loss(input=far, target=same, margin=99.0)  # CAUSE"),
        "paddle": program("far = (a - b).square().mean(1)",
                          "return F.hinge_embedding_loss(input=far, label=same, margin=99.0)  # CAUSE"),
    },
}  # fmt: skip
HEALTHY = {
    "cosine": program("return F.cosine_embedding_loss(a, b, same, margin=-0.99)", labels=SIGNS),
    "cosine, a module": program("return nn.CosineEmbeddingLoss(margin=-0.99)(a, b, same)", labels=SIGNS),
    "ranking": program("return F.margin_ranking_loss(a.sum(1), b.sum(1), same, margin=9.0)", labels=SIGNS),
    "soft margin": program("return F.soft_margin_loss(a.sum(1), same) + b.square().mean()", labels=SIGNS),
    "hinge": program("return F.hinge_embedding_loss((a - b).square().mean(1), same, margin=99.0)", labels=SIGNS),
    "all alike": program("return F.cosine_embedding_loss(a, b, same)", labels="[1.0] * 8"),
    "none alike": program("return F.cosine_embedding_loss(a, b, same, margin=-0.99)", labels="[-1.0] * 8"),
    "all of one order": program("return F.margin_ranking_loss(a.sum(1), b.sum(1), same, margin=9.0)",
                                labels="[1.0] * 8"),
    "a loss of 0 and 1": program("return F.binary_cross_entropy_with_logits((a * b).sum(1), same)"),
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    return HEAD[framework] + (part if isinstance(part, str) else part[framework])


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    texts = {name: text(request.param, part) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"signs-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


def check_nowhere(run: Run) -> None:
    assert "pushed nowhere: 3\n" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "error" and "the 3 with 0 are pushed nowhere" in first["message"], first


@each
@pytest.mark.parametrize("name", BUGGY)
def test_labels_without_sign(runs: dict[str, Run], name: str) -> None:
    check_nowhere(runs[f"buggy, {name}"])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_labels_with_a_sign(runs: dict[str, Run], name: str) -> None:
    assert "pushed nowhere: 0\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
