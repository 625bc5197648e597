"""Teachers in training mode. Witness: whether two calls on one batch give the same."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def program(
    teacher: str = "",
    targets: str = "teacher(x)",
    after: str = "pass",
    part: str = "nn.Dropout(0.5)",
    mark: str = "  # CAUSE",
) -> str:
    return f"""
teacher = nn.Sequential(nn.Linear(6, 16), {part}, nn.Linear(16, 3)){mark}
{teacher}
net = nn.Linear(6, 3)
optimizer = Sgd(net.parameters())
x = noise(32, 6)
def goals():
    with fw.no_grad():
        return {targets}
print("same", bool((goals() - goals()).abs().max() == 0))
for step in range(9):
    loss = F.mse_loss(net(x), goals())
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
    {after}
"""


NORM = "nn.BatchNorm1d(16)"
FROZEN = """
for each in teacher.parameters():
    each.stop_gradient = True
    if fw.__name__ == "torch":
        each.requires_grad_(False)
"""
BUGGY = {
    "dropout": program(),
    "frozen": program(FROZEN),
    "softened": program(targets="F.softmax(teacher(x) / 2.0, -1)"),
}
AVERAGE = """with fw.no_grad():
        for each in teacher.parameters():
            fill(each, 0.1 * step)"""
HEALTHY = {
    "eval": program("teacher.eval()", mark=""),
    "a mean teacher": program(after=AVERAGE, mark=""),
    "nothing that differs": program(part="nn.Tanh()", mark=""),
    "an uncertainty": program(targets="fw.stack([teacher(x) for _ in range(8)]).mean(0)", mark=""),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"teachers-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_a_teacher_in_training_mode(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "same False" in run.plain, run
    first = run.check_first("wrong-mode")
    assert "is never trained and runs in training mode" in first["message"], first


@each
@named(HEALTHY, {})
def test_a_teacher_that_is_right(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert not [found for found in run.above_notes() if "never trained" in found["message"]], run
