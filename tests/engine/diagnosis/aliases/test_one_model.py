"""Copies of a model that are none. Witness: whether both move by a step of one."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def program(made: str, first: str = "ema", second: str = "net", mark: str = "  # CAUSE") -> str:
    return f"""
import copy
class Agent:
    pass
agent = Agent()
net = nn.Linear(6, 1)
agent.net = net
{made}{mark}
optimizer = Sgd(net.parameters())
x = noise(32, 6)
for step in range(6):
    loss = (net(x) - x[:, :1]).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
    with fw.no_grad():
        for a, b in zip({first}.parameters(), {second}.parameters()):
            new = 0.9 * a + 0.1 * b
            a.copy_(new) if fw.__name__ == "torch" else a.set_value(new)
print("one", {first}.weight is {second}.weight)
"""


BUGGY = {
    "a name": program("ema = net"),
    "a shallow copy": program("ema = copy.copy(net)"),
    "an attribute": program("agent.ema = agent.net", "agent.ema", "agent.net"),
}
HEALTHY = {
    "a deep copy": program("ema = copy.deepcopy(net)", mark=""),
    "another one": program("ema = nn.Linear(6, 1)", mark=""),
    "an attribute": program("agent.ema = copy.deepcopy(net)", "agent.ema", "agent.net", mark=""),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"one-model-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_two_names_of_one_model(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "one True" in run.plain, run
    first = run.check_first("silent-overwrite")
    assert first["severity"] == "error" and "are one model" in first["message"], first


@each
@named(HEALTHY, {})
def test_two_models(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert "one False" in run.plain, run
    assert not [found for found in run.above_notes() if "one model" in found["message"]], run
