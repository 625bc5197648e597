"""Gradients that a saturated operator makes small. Witness: the gradient's own size."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD

PROGRAM = """
net = nn.Linear(6, 3)
optimizer = Sgd(net.parameters(), 1e-9)
x = noise(16, 6) * 0.1
for step in range(9):
    loss = (fw.sigmoid(net(x) - 27.0) * FACTOR).mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
print("gradient", float(net.weight.grad.abs().max()) > 0.01)
"""
SIZES = {"large ones come in": "1e14", "ordinary ones come in": "1.0"}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {name: PROGRAM.replace("FACTOR", factor) for name, factor in SIZES.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"good-as-zero-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(SIZES, {})
def test_only_next_to_nothing_is_as_good_as_zero(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    trains = "gradient True" in run.plain
    assert trains is (name == "large ones come in"), run
    assert any(found["kind"] == "zero-gradient" for found in run.every) is not trains, run
