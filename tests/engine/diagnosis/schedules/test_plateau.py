"""Schedules that wait for the wrong turn. Witness: the rate, which falls as the loss does."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def step(loss: str, count: int = 12, after: str = "    pass") -> str:
    return f"""
optimizer = Sgd(net.parameters(), 0.01)
x = noise(32, 6)
for step in range({count}):
{loss}
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
{after}
"""


PLATEAU = """
net = nn.Linear(6, 3)
def made(optimizer_or_rate, mode):
    if fw.__name__ == "torch":
        return fw.optim.lr_scheduler.ReduceLROnPlateau(optimizer_or_rate, mode=mode, patience=1)
    return fw.optimizer.lr.ReduceOnPlateau(0.01, mode=mode, patience=1)
if fw.__name__ == "torch":
    optimizer = Sgd(net.parameters(), 0.01)
    sched = MADE.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=MODE, patience=1)MARK_torch
else:
    sched = MADE.optimizer.lr.ReduceOnPlateau(0.01, mode=MODE, patience=1)MARK_paddle
    optimizer = fw.optimizer.SGD(sched, parameters=list(net.parameters()))
x = noise(32, 6)
for step in range(12):
    loss = (net(x) - x[:, :3]).square().mean()
    accuracy = 1.0 - float(loss)
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
    sched.step(GIVEN)
rate = optimizer.param_groups[0]["lr"] if fw.__name__ == "torch" else optimizer.get_lr()
print("fell", rate < 0.009)
"""


def plateau(mode: str, given: str) -> str:
    return PLATEAU.replace("MADE", "fw").replace("MODE", repr(mode)).replace("GIVEN", given)


BUGGY = {
    "a loss that is to rise": plateau("max", "float(loss)"),
    "a loss": plateau("max", "loss.item()"),
    "an accuracy that is to fall": plateau("min", "accuracy"),
}
HEALTHY = {
    "a loss": plateau("min", "float(loss)"),
    "an accuracy": plateau("max", "accuracy"),
    "a negative loss": plateau("max", "-loss.item()"),
    "a name that says nothing": plateau("max", "1.0 - loss.item() * 1.0 if False else accuracy"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    for name, part in parts.items():
        mark = "  # CAUSE" if name.startswith("buggy") else ""
        other = "paddle" if request.param == "torch" else "torch"
        parts[name] = part.replace(f"MARK_{request.param}", mark).replace(f"MARK_{other}", "")
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"plateau-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_a_schedule_that_waits_for_the_wrong_turn(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "fell True" in run.plain, run
    first = run.check_first("schedule-order")
    assert "counts as a plateau" in first["message"], first


@each
@named(HEALTHY, {})
def test_a_schedule_that_waits_for_the_right_turn(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert "fell False" in run.plain, run
    assert not [found for found in run.every if "counts as a plateau" in found["message"]], run
