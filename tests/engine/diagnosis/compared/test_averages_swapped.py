"""Averages whose factors are exchanged. Witness: how far the average is from the weights of now."""

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


NET = """
import copy
net = nn.Linear(6, 3)
ema = copy.deepcopy(net)
for each in ema.parameters():
    each.stop_gradient = True
    if fw.__name__ == "torch":
        each.requires_grad_(False)
"""
END = """
print("follows", float((ema.weight - net.weight).abs().max()) < 0.01)
"""


def average(*lines: str, count: int = 12) -> str:
    body = "".join(f"            {line}\n" for line in lines)
    after = f"""    with fw.no_grad():
        for a, b in zip(ema.parameters(), net.parameters()):
{body}"""
    return NET + step("    loss = (net(x) - 2.0 * x[:, :3]).square().mean() * 20.0", count, after) + END


PUT = {"torch": "copy_", "paddle": "set_value"}
BUGGY = {
    "a sum": average("a.PUT(0.001 * a + 0.999 * b)  # CAUSE"),
    "tau": average("tau = 0.005", "a.PUT(tau * a + (1 - tau) * b)  # CAUSE"),
    "in place": average(
        "if fw.__name__ == 'torch':",
        "    a.mul_(0.01).add_(b, alpha=0.99)  # CAUSE",
        "else:",
        "    a.PUT(0.01 * a + 0.99 * b)",
    ),
}
HEALTHY = {
    "an average": average("a.PUT(0.999 * a + 0.001 * b)"),
    "tau": average("tau = 0.005", "a.PUT((1 - tau) * a + tau * b)"),
    "half": average("a.PUT(0.5 * a + 0.5 * b)"),
    "a copy": average("a.PUT(b)"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    texts = {name: HEAD[request.param] + part.replace("PUT", PUT[request.param]) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"exchanged-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_factors_that_are_exchanged(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "follows True" in run.plain, run
    if name == "in place" and "import paddle" in run.program:
        assert any(found["kind"] == "lost-update" for found in run.above_notes()), run
        return
    first = run.check_first("lost-update")
    assert "exchange the two factors" in first["message"], first


@each
@named(HEALTHY, {})
def test_factors_that_are_right(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert "follows False" in run.plain or name not in ("an average", "tau"), run
    assert not [found for found in run.every if "two factors" in found["message"]], run
