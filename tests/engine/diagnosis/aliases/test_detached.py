"""A name that was given a tensor detached, or an array of it, and is written into before the tensor is read. Witness:
the tensor's values, which the program prints as they are read."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

FIT = """
for step in range(6):
    x = noise(8, 4)
    scores = net(x)
    made = float(scores.detach().sum())
    chosen = choose(scores)
    print("read as made" if abs(float(scores.detach().sum()) - made) < 1e-3 else "overwritten")
    loss = (scores - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
BUGGY = {
    "a name": """
def choose(scores):
    rest = scores.detach()
    rest[0] = -100.0  # CAUSE
    return rest.argmax(0)
""" + FIT,
    "a view of it": """
def choose(scores):
    rest = scores.detach()
    first = rest[:4]
    first.zero_()  # CAUSE
    return rest.max()
""" + FIT,
}  # fmt: skip
ARRAY = (
    """
def choose(scores):
    rest = scores.detach().numpy()
    for row in range(3):
        rest[row, :] = -100.0  # CAUSE
    return int(rest.argmax())
"""
    + FIT
)
# A batch without gradients, of which others are made; and labels.
DATA = """
rows = noise(20, 4)
table = lambda at: rows[at]
def corrupt(triples):
    other = triples.detach()
    other[:, 0] = framework.randint(0, 20, [8])  # CAUSE
    return other
for step in range(6):
    triples = framework.randint(0, 20, [8, 3])
    first = int(triples[:, 0].sum())
    made = corrupt(triples)
    print("read as made" if int(triples[:, 0].sum()) == first else "overwritten")
    loss = (net(table(triples[:, 0])) - net(table(made[:, 0])) + 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
HEALTHY = {
    "data, a copy": DATA.replace("triples.detach()", "triples.clone()").replace("  # CAUSE", ""),
    "data, meant": DATA.replace("made = corrupt(triples)", "memory_bank = triples")
    .replace("made[:, 0]", "memory_bank[:, 0]").replace("  # CAUSE", ""),
    "a copy": BUGGY["a name"].replace("scores.detach()\n", "scores.detach().clone()\n"),
    "a copy of an array": ARRAY.replace(".numpy()", ".numpy().copy()"),
    "only looked at": BUGGY["a name"].replace("    rest[0] = -100.0  # CAUSE\n", "    low = rest - 100.0\n"),
    # Scaled to be shown; what is divided by a number does not mind.
    "a loss to be shown": """
for step in range(6):
    loss = (net(noise(8, 4)) - 1).square().mean()
    shown = (loss * 2).detach()
    shown *= 100
    print("read as made", float(shown) > 0)
    loss.backward()
    optimizer.step()
    clear()
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {
        name: small_net(request.param) + text
        for name, text in (BUGGY | HEALTHY | {"array": ARRAY, "data": DATA}).items()
    }
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"detached-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_writes(runs: dict[str, Run], name: str) -> None:
    assert "overwritten" in runs[name].plain
    assert runs[name].check_first("silent-overwrite")["severity"] == "error"


@each
def test_a_batch(runs: dict[str, Run]) -> None:
    assert "overwritten" in runs["data"].plain
    assert runs["data"].check_first("silent-overwrite")["severity"] == "warning"


@pytest.mark.parametrize("runs", [case("torch", "torch", group="detached-torch")], indirect=True)
def test_an_array(runs: dict[str, Run]) -> None:
    """Paddle's arrays are copies."""
    assert "overwritten" in runs["array"].plain
    assert runs["array"].check_first("silent-overwrite")["severity"] == "error"


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_changes_nothing(runs: dict[str, Run], name: str) -> None:
    assert "overwritten" not in runs[name].plain
    runs[name].check_healthy()
