"""Flags that are no flags. Witness: whether the weights that were to be frozen moved."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named, only
from support.short_programs import HEAD


def program(freeze: str) -> str:
    return f"""
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
{freeze}
before = net[0].weight.detach().clone()
optimizer = Sgd([each for each in net.parameters()])
x = noise(64, 6)
for step in range(4):
    loss = (net(x) - x[:, :1]).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
print("moved", bool((net[0].weight - before).abs().max() > 0))
"""


EACH = "for each in net[0].parameters():\n    "
BUGGY = {
    "require_grad": program(EACH + "each.require_grad = False  # CAUSE"),
    "requires_grads": program(EACH + "each.requires_grads = False  # CAUSE"),
    "stop_gradients": program(EACH + "each.stop_gradients = True  # CAUSE"),
    "of a module": program("net[0].require_grad = False  # CAUSE"),
}
TORCH = {
    "a method": program(EACH + "each.requires_grad_ = False  # CAUSE"),
    "of another framework": program(EACH + "each.stop_gradient = True  # CAUSE"),
}
LATER = """
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = Sgd(net.parameters())
x = noise(64, 6)
for step in range(12):
    if step == 5:
        for part in net:
            part.FLAG  # CAUSE
        before = net[0].weight.detach().clone()
    loss = (net(x) - x[:, :1]).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
print("moved", bool((net[0].weight - before).abs().max() > 0))
"""
STAGES = {
    "later": LATER.replace("FLAG", "require_grad = False"),
    "later, of a module": LATER.replace("FLAG", "requires_grad = False"),
}
RIGHT = "each.stop_gradient = True\n    each.requires_grad = False"
HEALTHY = {
    "the flag": program(EACH + RIGHT),
    "both": program(EACH + RIGHT + "\n    each.require_grad = False"),
    "another attribute": program(EACH + "each.is_first = True\n    each.decays = False\n    each.required = False"),
    "as it is": program(EACH + "each.require_grad = True"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = BUGGY | TORCH | STAGES | HEALTHY
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"misspelled-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


def check(run: Run) -> None:
    assert "moved True" in run.plain, run
    first = run.check_first("module-flag")
    assert first["severity"] == "error", first
    assert len(run.above_notes()) == 1, run


@each
@named(BUGGY, {})
def test_a_flag_by_another_name(runs: dict[str, Run], name: str) -> None:
    check(runs[name])


@each
@named(STAGES, {})
def test_a_flag_that_a_later_stage_sets(runs: dict[str, Run], name: str) -> None:
    check(runs[name])


@only("torch", "Paddle's tensors have these")
@pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
@pytest.mark.parametrize("name", list(TORCH))
def test_a_flag_that_torch_does_not_have(runs: dict[str, Run], name: str) -> None:
    check(runs[name])


@each
@named(HEALTHY, {})
def test_flags_that_are_right(runs: dict[str, Run], name: str) -> None:
    assert not [found for found in runs[name].every if found["kind"] == "module-flag"], runs[name]
