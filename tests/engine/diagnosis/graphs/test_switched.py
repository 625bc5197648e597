"""Gradients that are switched off and never on again: the switch is told, and no line that took something since."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
noise = framework.randn
def sgd(module):
    return framework.optim.SGD(module.parameters(), 0.05)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
noise = lambda *shape: framework.randn(shape)
def sgd(module):
    return framework.optimizer.SGD(0.05, parameters=module.parameters())
""",
}

# From iteration 5 on, which no detector looks at closely.
LEFT = """
net = nn.Linear(4, 1)
optimizer = sgd(net)
def step(x):
    optimizer.CLEAR()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
def evaluate():
    framework.set_grad_enabled(False)  # CAUSE
    return net(noise(8, 4)).sum().item()
for epoch in range(3):
    for _ in range(4):
        step(noise(8, 4))
    evaluate()
"""
# Another function switches them on again.
ONE_OF_TWO = LEFT.replace(
    "for epoch",
    """def sample():
    framework.set_grad_enabled(False)
    value = net(noise(2, 4)).sum().item()
    framework.set_grad_enabled(True)
    return value
for epoch""",
).replace("    evaluate()\n", "    sample()\n    evaluate()\n")
ENTERED = LEFT.replace("framework.set_grad_enabled(False)", "framework.no_grad().__enter__()")
BEGUN = """
net = nn.Linear(4, 1)
optimizer = sgd(net)
with framework.no_grad():  # CAUSE
    for _ in range(4):
        optimizer.CLEAR()
        loss = net(noise(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
"""
# Switched on again; and a backward under no_grad through what was recorded before.
ON_AGAIN = LEFT.replace("  # CAUSE", "").replace(
    "    return net(noise(8, 4)).sum()",
    "    value = net(noise(8, 4)).sum()\n    framework.set_grad_enabled(True)\n    return value",
)
UNDER = LEFT.replace("    framework.set_grad_enabled(False)  # CAUSE\n", "").replace(
    "    loss.backward()", "    with framework.no_grad():\n        loss.backward()"
)

OFF = {"left": LEFT, "one of two": ONE_OF_TWO, "entered": ENTERED, "begun": BEGUN}
HEALTHY = {"on again": ON_AGAIN, "under": UNDER}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "zero_grad" if request.param == "torch" else "clear_grad"
    programs = {name: text.replace("CLEAR()", f"{clear}()") for name, text in (OFF | HEALTHY).items()}
    texts = {name: HEAD[request.param] + text for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-switched-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", OFF)
def test_the_switch_is_the_cause(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("no-gradient")["message"]
    assert "switched off" in message and "switched on again" in message, message
    assert [each["kind"] for each in runs[name].above_notes()] == ["no-gradient"], runs[name]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_was_recorded_is_run_back(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
