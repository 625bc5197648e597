"""Divergences whose target is no probabilities. Witness: the same divergence, written out with Python's own logarithm,
of the softmax of what the target was made of."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import math
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
randn, no_grad = fw.randn, fw.no_grad
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import math
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
no_grad = fw.no_grad
def randn(*shape):
    return fw.randn(shape)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
net, teacher = nn.Linear(6, 4), nn.Linear(6, 4)
optimizer, clear = sgd(net)
x = randn(8, 6)
for at in range(5):
    with no_grad():
        wise = teacher(x)
    given = F.log_softmax(net(x), -1)
    BODY
    one, other = given.tolist(), F.softmax(wise, -1).tolist()
    exact = sum(q * (math.log(q) - p) for a, b in zip(one, other) for p, q in zip(a, b)) / 8
    found = loss.item()
    if at < 4:
        loss.backward()
        optimizer.step()
        clear()
print("as it is to be" if abs(found - exact) < 1e-3 else "something else")
"""


def program(*lines: str) -> str:
    return START.replace("BODY", "\n    ".join(lines))


MEAN = "reduction='batchmean'"
BUGGY = {
    "logarithms": program("target = F.log_softmax(wise, -1)  # CAUSE", f"loss = F.kl_div(given, target, {MEAN})"),
    "logarithms, a module": program("target = F.log_softmax(wise, -1)  # CAUSE",
                                    f"loss = nn.KLDivLoss({MEAN})(given, target)"),
    "logarithms, said to be none": program("target = F.log_softmax(wise, -1)  # CAUSE",
                                           f"loss = F.kl_div(given, target, {MEAN}, log_target=False)"),
    "a logarithm of probabilities": program("target = fw.log(F.softmax(wise, -1))",
                                            f"loss = F.kl_div(given, target, {MEAN})  # CAUSE"),
    "scores": program(f"loss = F.kl_div(given, wise, {MEAN})  # CAUSE"),
    "scores, a module": program("far = nn.KLDivLoss(reduction='sum')", "loss = far(given, wise) / 8  # CAUSE"),
}  # fmt: skip
HEALTHY = {
    "probabilities": program(f"loss = F.kl_div(given, F.softmax(wise, -1), {MEAN})"),
    "probabilities, a module": program(f"loss = nn.KLDivLoss({MEAN})(given, F.softmax(wise, -1))"),
    "said to be logarithms": program("target = F.log_softmax(wise, -1)",
                                     f"loss = F.kl_div(given, target, {MEAN}, log_target=True)"),
    "said to a module": program("far = nn.KLDivLoss(reduction='batchmean', log_target=True)",
                                "loss = far(given, F.log_softmax(wise, -1))"),
    "exponents of logarithms": program("target = F.log_softmax(wise, -1).exp()",
                                       f"loss = F.kl_div(given, target, {MEAN})"),
    "by hand": program("target = F.log_softmax(wise, -1)",
                       "loss = (target.exp() * (target - given)).sum(-1).mean()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"divergences-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_targets_that_are_no_probabilities(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "something else\n" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "error" and "wants probabilities as its target" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_targets_as_they_are_to_be(runs: dict[str, Run], name: str) -> None:
    assert "as it is to be\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
