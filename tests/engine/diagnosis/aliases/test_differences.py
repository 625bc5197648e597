"""How far training has moved the weights, taken of the weights and themselves. Witness: the program prints how far."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

from adbg.engine.diagnosis.detectors.aliases.loaded import keeping
from adbg.engine.diagnosis.source import nodes_of

# Two rounds of a few steps each, behind which weights are loaded.
ROUND = """
load = getattr(net, "load_state_dict", None) or net.set_state_dict
def steps(count):
    for _ in range(count):
        loss = (net(noise(6, 4)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        clear()
STEP
for _ in range(2):
    moved = meta_step()
print("moved", float(moved))
"""
REPTILE = """
def meta_step():
    before = KEPT
    steps(5)
    after = net.state_dict()
    moved = sum(float((after[k] - before[k]).abs().sum()) for k in before)
    load({k: before[k] + 0.5 * (after[k] - before[k]) for k in before})
    return moved
"""
AVERAGED = """
def meta_step():
    start = KEPT
    steps(5)
    trained = dict(net.state_dict())
    delta = {name: trained[name] - start[name] for name in start}
    load({name: start[name] + 0.5 * delta[name] for name in start})
    return sum(float(each.abs().sum()) for each in delta.values())
"""
# Each part of it in a function of its own, as a program of some length has it.
IN_FUNCTIONS = """
def snapshot():
    KEPT
def interpolate(start, end, rate):
    new, moved = {}, 0.0
    for name in start:
        delta = end[name] - start[name]
        moved += float(delta.abs().sum())
        new[name] = start[name] + rate * delta
    return new, moved
def restore(weights):
    load(weights)
def meta_step():
    start = snapshot()
    steps(5)
    end = snapshot()
    new, moved = interpolate(start, end, 0.5)
    restore(new)
    return moved
"""
# An evaluation that trains and takes it back.
TRIED = """
def snapshot():
    kept = KEPT
    return kept
def restore(weights):
    load(weights)
def meta_step():
    begun = snapshot()
    before = net.state_dict()["0.weight"].clone()
    steps(5)
    restore(begun)
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
BUGGY = {
    "reptile": REPTILE.replace("KEPT", "net.state_dict()  # CAUSE"),
    "averaged": AVERAGED.replace("KEPT", "{name: weight for name, weight in net.state_dict().items()}  # CAUSE"),
    "in functions": IN_FUNCTIONS.replace(
        "KEPT", "return {name: weight for name, weight in net.state_dict().items()}  # CAUSE"
    ),
}
# The weights of all ranks are put together in the dict itself, and loaded again.
PUT_TOGETHER = """
def meta_step():
    before = net.state_dict()["0.weight"].clone()
    steps(5)
    kept = net.state_dict()
    with framework.no_grad():
        for each in kept.values():
            each.scale_(0.999) if hasattr(each, "scale_") else each.mul_(0.999)
    load(kept)
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
# The same ahead of the step, in a loop; in a function that is called for each step; of one copy, or several; and as an
# attribute.
AHEAD = """
def clipped(weights):
    with framework.no_grad():
        for each in weights.values():
            put(each, each.clip(-0.3, 0.3))
def meta_step():
    before = net.state_dict()["0.weight"].clone()
    for _ in range(5):
        weights = net.state_dict()
        clipped(weights)
        load(weights)
        steps(1)
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
CALLED = """
def turn():
    weights = net.state_dict()
    load(weights)
    steps(1)
def meta_step():
    before = net.state_dict()["0.weight"].clone()
    for _ in range(5):
        turn()
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
COPIES = """
def meta_step(copies=1):
    before = net.state_dict()["0.weight"].clone()
    steps(5)
    if copies > 1:
        weights = copy.deepcopy(net.state_dict())
    else:
        weights = net.state_dict()
    load(weights)
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
ATTRIBUTE = """
class Runner:
    def keep(self):
        self.weights = net.state_dict()
    def put_back(self):
        load(self.weights)
runner = Runner()
def meta_step():
    before = net.state_dict()["0.weight"].clone()
    for _ in range(5):
        steps(1)
        runner.keep()
        runner.put_back()
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
# The difference was taken of a copy; the name is given the weights after that.
RENAMED = """
def moved(start, end):
    return {name: start[name] + 0.5 * (end[name] - start[name]) for name in start}
def restore(weights):
    load(weights)
def meta_step():
    begun = copy.deepcopy(net.state_dict())
    before = begun["0.weight"].clone()
    steps(5)
    end = net.state_dict()
    new = moved(begun, end)
    begun = net.state_dict()
    restore(new)
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
# The best so far is kept in one turn of the loop and put back in another.
BEST = """
def meta_step():
    before = net.state_dict()["0.weight"].clone()
    for turn in range(4):
        steps(2)
        if turn == 0:
            best = net.state_dict()  # CAUSE
        if turn == 3:
            load(best)
    return (net.state_dict()["0.weight"] - before).abs().sum()
"""
RESTORED = TRIED.replace("KEPT", "net.state_dict()  # CAUSE")
HEALTHY = {
    "deep copies": REPTILE.replace("KEPT", "copy.deepcopy(net.state_dict())"),
    "clones by a function": IN_FUNCTIONS.replace("KEPT", "return copy.deepcopy(net.state_dict())"),
    "ahead": AHEAD,
    "called": CALLED,
    "copies": COPIES,
    "attribute": ATTRIBUTE,
    "renamed": RENAMED,
    "put together": PUT_TOGETHER,
    "taken back": TRIED.replace("KEPT", "copy.deepcopy(net.state_dict())"),
    "clones": AVERAGED.replace("KEPT", "{name: weight.clone() for name, weight in net.state_dict().items()}"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    start = small_net(request.param)
    texts = {
        name: start + ROUND.replace("STEP", text)
        for name, text in (BUGGY | HEALTHY | {"restored": RESTORED, "best": BEST}).items()
    }
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"differences-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_weights_less_themselves(runs: dict[str, Run], name: str) -> None:
    assert "moved 0.0" in runs[name].plain
    assert "weights that do not move" in runs[name].check_first("silent-overwrite")["message"]


def test_a_function_that_calls_itself_ends_the_search(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text("def kept(n):\n    weights = kept(n - 1)\n    return weights\nw = kept(3)\n")
    (made,) = [each for each in nodes_of(str(script)) if isinstance(each, ast.Assign) and each.lineno == 4]
    assert keeping(str(script), made, "<module>") is None


@each
@pytest.mark.parametrize("name", ["restored", "best"])
def test_what_was_kept_is_restored_from_itself(runs: dict[str, Run], name: str) -> None:
    assert "moved 0.0" not in runs[name].plain
    assert "from its own memory" in runs[name].check_first("silent-overwrite")["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_copies(runs: dict[str, Run], name: str) -> None:
    assert ("moved 0.0" in runs[name].plain) == (name == "taken back")
    runs[name].check_healthy()
