"""Inputs that are shuffled without their labels. Witness: how many rows still have the label that they began with."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def program(shuffle: str, before: str = "", inside: str = "") -> str:
    return f"""
net = nn.Linear(6, 2)
optimizer = Sgd(net.parameters())
x = noise(60, 6)
{before}
y = (x[:, 0] > 0).cast("int64") if fw.__name__ == "paddle" else (x[:, 0] > 0).long()
extra = noise(60, 6)
for epoch in range(4):
    {shuffle}
    for at in range(0, 60, 20):
        {inside}
        loss = F.cross_entropy(net(x[at : at + 20]), y[at : at + 20])
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
    print("right", epoch, int(((x[:, 0] > 0) == (y > 0)).sum()) == 60)
"""


BUGGY = {
    "in the line": program("x = x[fw.randperm(60)]  # CAUSE"),
    "by a name": program("order = fw.randperm(60)\n    x = x[order]  # CAUSE"),
    "and something else": program("order = fw.randperm(60)\n    x = x[order]  # CAUSE\n    kept = extra[order]"),
}
HEALTHY = {
    "both": program("order = fw.randperm(60)\n    x = x[order]\n    y = y[order]"),
    "both in one line": program("order = fw.randperm(60)\n    x, y = x[order], y[order]"),
    "before the labels are made": program("pass", "x = x[fw.randperm(60)]"),
    "under another name": program("mixed = x[fw.randperm(60)]"),
    "neither": program("pass"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"alone-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_inputs_that_are_shuffled_alone(runs: dict[str, Run], name: str) -> None:
    assert "right 3 False" in runs[f"buggy, {name}"].plain
    first = runs[f"buggy, {name}"].check_first("loss-input")
    assert first["severity"] == "error" and "alone" in first["message"], first


@each
@named(HEALTHY, {})
def test_inputs_that_keep_their_labels(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert "right 3 True" in run.plain
    assert not [found for found in run.every if "alone" in found["message"]], run
