"""Weights that are compared with themselves. Witness: the program prints the difference."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

COPIES = """
def copies():
    return {name: value.detach().clone() for name, value in net.state_dict().items()}
"""
FIT = """
for step in range(8):
    loss = (net(noise(6, 4)) - 1).square().mean() + 0.1 * distance()
    loss.backward()
    optimizer.step()
    clear()
print("distance", float(distance()))
"""
BUGGY = {
    "a dictionary": """
start = {name: weight.detach() for name, weight in net.named_parameters()}  # CAUSE
def distance():
    total = framework.zeros([])
    for name, weight in net.named_parameters():
        total = total + (weight - start[name]).square().sum()
    return total
"""
    + FIT,
    "a state dict": """
class Anchor:
    def __init__(self, net):
        self.net = net
        self.start = dict(net.state_dict())  # CAUSE
    def distance(self):
        gaps = [(weight - self.start[name]).square().sum() for name, weight in self.net.named_parameters()]
        return sum(gaps)
distance = Anchor(net).distance
"""
    + FIT,
    "outside of the graph": """
def kept():
    return [weight.detach() for weight in net.parameters()]  # CAUSE
before = kept()
@framework.no_grad()
def distance():
    moved = framework.zeros([])
    for weight, old in zip(net.parameters(), before):
        moved += framework.subtract(weight, old).abs().sum()
    return moved
"""
    + FIT,
}
HEALTHY = {
    "copies": BUGGY["a dictionary"].replace(
        "{name: weight.detach() for name, weight in net.named_parameters()}  # CAUSE", "copies()"
    ),
    "a gradient of a value that is 0": """
def distance():
    return sum((weight - weight.detach()).sum() for weight in net.parameters())
"""
    + FIT,
    "one that nothing has changed yet": """
def distance():
    start = {name: weight.detach() for name, weight in net.named_parameters()}
    return sum((weight - start[name]).square().sum() for name, weight in net.named_parameters())
"""
    + FIT,
    "every one against every other": """
scores = net[0].bias
def distance():
    return 0.1 * (scores.unsqueeze(1) - scores).square().mean()
"""
    + FIT,
    "another model": """
other = copy.deepcopy(net)
def distance():
    return sum((one - two.detach()).square().sum() for one, two in zip(net.parameters(), other.parameters()))
"""
    + FIT,
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: small_net(request.param) + COPIES + text for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize("runs", [case(name, name, group=f"itself-{name}") for name in FRAMEWORKS], indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_weight_that_is_compared_with_itself(runs: dict[str, Run], name: str) -> None:
    assert "distance 0.0" in runs[name].plain
    # Paddle's state dict has the parameters themselves, as a weight that two modules share is.
    expected = ("error", "note") if name == "a state dict" else ("error",)
    assert runs[name].check_first("silent-overwrite")["severity"] in expected


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_differences_that_are_meant(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
