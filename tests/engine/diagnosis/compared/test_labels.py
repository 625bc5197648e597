"""Labels that a loss of two classes cannot take, and triplets whose parts are exchanged. Witness: a loss below 0."""

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


def labelled(target: str, loss: str) -> str:
    return "net = nn.Linear(6, 1)\n" + step(f"""    y = {target}
    out = net(x)
    loss = {loss}
    low = F.binary_cross_entropy_with_logits(out * 0 + 50.0 * fw.sign(y), y)
    print("below", float(low) < 0)""")


LOGITS = "F.binary_cross_entropy_with_logits(out, y)"
BUGGY = {
    "signs": labelled("fw.sign(x[:, :1])", LOGITS + "  # CAUSE"),
    "numbers": labelled("x[:, :1] * 3", LOGITS + "  # CAUSE"),
    "percents": labelled("(x[:, :1] > 0) * 100.0", LOGITS + "  # CAUSE"),
}
HEALTHY = {
    "classes": labelled("(x[:, :1] > 0) * 1.0", LOGITS),
    "shares": labelled("fw.sigmoid(x[:, :1])", LOGITS),
    "a hinge": labelled("(x[:, :1] > 0) * 1.0", "F.relu(1 - (2 * y - 1) * out).mean()"),
}
TRIPLET = "net = nn.Linear(6, 4)\n" + step("""    anchor, pos, neg = net(x), net(x + 0.01), net(-x)
    near, far = (anchor - pos).square().mean(), (anchor - neg).square().mean()
    print("apart", float(far) > float(near))
    loss = F.triplet_margin_loss(GIVEN)MARK""")
TURNED = {
    "exchanged": TRIPLET.replace("GIVEN", "anchor, neg, pos").replace("MARK", "  # CAUSE"),
    "by other names": TRIPLET.replace("anchor, pos, neg = ", "a, positive, negative = ")
    .replace(
        "near, far = (anchor - pos).square().mean(), (anchor - neg).square().mean()",
        "near, far = (a - positive).square().mean(), (a - negative).square().mean()",
    )
    .replace("GIVEN", "a, negative, positive")
    .replace("MARK", "  # CAUSE"),
}
ORDERED = {"in order": TRIPLET.replace("GIVEN", "anchor, pos, neg").replace("MARK", "")}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()}
    parts |= {f"healthy, {name}": part for name, part in HEALTHY.items()}
    parts |= {f"triplet, {name}": part for name, part in (TURNED | ORDERED).items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"labels-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_labels_that_are_no_shares(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "below True" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "error" and "labels of 0 to 1" in first["message"], first


@each
@named(HEALTHY, {})
def test_labels_that_are_shares(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy, {name}"]
    assert "below True" not in run.plain, run
    assert not [found for found in run.every if "labels of 0 to 1" in found["message"]], run


@each
@named(TURNED, {})
def test_parts_of_triplets_that_are_exchanged(runs: dict[str, Run], name: str) -> None:
    run = runs[f"triplet, {name}"]
    assert "apart True" in run.plain, run
    first = run.check_first("loss-input")
    assert "driven apart" in first["message"], first


@each
@named(ORDERED, {})
def test_parts_of_triplets_in_order(runs: dict[str, Run], name: str) -> None:
    assert not [found for found in runs[f"triplet, {name}"].every if "driven apart" in found["message"]]
