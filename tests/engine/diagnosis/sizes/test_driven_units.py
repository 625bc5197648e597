"""Units that training itself saturates, after a while: their targets lie at the ends of tanh. Witness: how large the
smallest of them is in the end, by the framework's own numbers."""

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
randn, made = fw.randn, fw.tensor
def adam(net, rate):
    optimizer = fw.optim.Adam(net.parameters(), rate)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
made = fw.to_tensor
def randn(*shape):
    return fw.randn(shape)
def adam(net, rate):
    optimizer = fw.optimizer.Adam(rate, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
layer = nn.Linear(8, 8)
optimizer, clear = adam(layer, RATE)
signs = made([[1.0 if (row >> at) % 2 else -1.0 for at in range(8)] for row in range(0, 256, 8)])
for at in range(130):
    x = signs * SCALE
    h = fw.tanh(layer(x))  # CAUSE
    loss = 1 - (h * signs).mean()
    clear()
    loss.backward()
    optimizer.step()
print("saturated:", bool((h.abs() > 0.995).all()))
"""
PROGRAMS = {
    "driven": START.replace("RATE", "0.12").replace("SCALE", "1.0"),
    "at once": START.replace("RATE", "0.001").replace("SCALE", "1000.0"),
    "never": START.replace("RATE", "0.001").replace("SCALE", "1.0"),
}


def texts(framework: str) -> dict[str, str]:
    return {name: HEAD[framework] + part for name, part in PROGRAMS.items()}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"sizes-driven-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_units_that_training_saturates_are_a_note(runs: dict[str, Run]) -> None:
    run = runs["driven"]
    assert "saturated: True\n" in run.plain, run
    run.check_healthy("saturated-units")
    assert any("training itself may drive them there" in each for each in run.told[0]["evidence"]), run


@each
def test_units_that_are_saturated_early_are_a_warning(runs: dict[str, Run]) -> None:
    run = runs["at once"]
    assert "saturated: True\n" in run.plain, run
    assert run.check_first("saturated-units")["severity"] == "warning", run
    assert not any("training itself may drive them there" in each for each in run.told[0]["evidence"]), run


@each
def test_units_that_are_not_saturated(runs: dict[str, Run]) -> None:
    assert "saturated: False\n" in runs["never"].plain, runs["never"]
    runs["never"].check_healthy()
