"""Similarities that are multiplied by their temperature. Witness: the least loss that logits so near to 0 can give."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD

PROGRAM = """
import math
net = nn.Linear(6, 8)
optimizer = Sgd(net.parameters())
def unit(value):
    return value / value.square().sum(-1, keepdim=True).sqrt()
for step in range(5):
    x = noise(16, 6)
    a, b = unit(net(x)), unit(net(x + 0.01))
    sim = fw.matmul(a, b.t())
    logits = LOGITS
    loss = F.cross_entropy(logits, fw.arange(16))
    print("least", step, math.log(1 + 15 * math.exp(-2 * float(logits.abs().max()))) > 2.0)
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
BUGGY = {
    "a product": "sim * 0.07  # CAUSE",
    "a name": "sim * (lambda temperature=0.1: temperature)()  # CAUSE",
    "from the left": "0.05 * sim  # CAUSE",
}
HEALTHY = {
    "a quotient": "sim / 0.07",
    "its inverse": "sim * (1 / 0.07)",
    "no unit vectors": "fw.matmul(net(x) * 20.0, net(x + 0.01).t()) * 0.1",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": PROGRAM.replace("LOGITS", part) for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": PROGRAM.replace("LOGITS", part) for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"temperature-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_logits_that_stay_near_zero(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "least 4 True" in run.plain, run
    assert "divide by it" in run.check_first("loss-input")["message"]


@each
@named(HEALTHY, {})
def test_logits_that_reach_far(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert "least 4 False" in run.plain, run
    assert not [found for found in run.every if "divide by it" in found["message"]], run
