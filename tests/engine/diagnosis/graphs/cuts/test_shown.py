"""Numbers that leave a graph to be shown are not what cuts parameters off; those that a loss is made of are."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

FIT = """
scale = nn.Linear(4, 1)
both = [*net.parameters(), *scale.parameters()]
GIVEN
for step in range(10):
    x = noise(8, 4)
    loss = of(net(x), scale(x))
    loss.backward()
    optimizer.step()
    clear()
"""
PROGRAMS = {
    "printed": """
def of(found, other):
    print(f"other {other.mean().item():.3f}")
    return (found - 1).square().mean()
""",
    "used": """
import math
def of(found, other):
    size = math.log(other.square().mean().item() + 2.0)  # CAUSE
    return (found - size).square().mean()
""",
}
GIVEN = {
    "torch": "optimizer = framework.optim.SGD(both, 0.05)\nclear = optimizer.zero_grad",
    "paddle": "optimizer = framework.optimizer.SGD(0.05, parameters=both)\nclear = optimizer.clear_grad",
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    fit = FIT.replace("GIVEN", GIVEN[request.param])
    texts = {name: small_net(request.param) + text + fit for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"cuts-shown-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_a_loss_is_made_of_the_number(runs: dict[str, Run]) -> None:
    found = runs["used"].check_first("no-gradient")
    assert found["severity"] == "error" and "item" in found["message"]


@each
def test_it_is_only_printed(runs: dict[str, Run]) -> None:
    """What needs the gradient is in an optimizer and reaches no loss, which is worth a word."""
    (found,) = [each for each in runs["printed"].told if each["kind"] == "no-gradient"]
    assert found["severity"] == "warning" and "item" not in found["message"], str(runs["printed"])
