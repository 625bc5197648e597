"""Backups of weights that share their memory, and what looks like it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

FIT = """
def backward():
    loss = (net(noise(6, 4)) - 1).square().mean()
    loss.backward()
"""
# An attack on the weights, and back.
ATTACK = (
    FIT
    + """
kept = {}
for step in range(8):
    backward()
    with framework.no_grad():
        for name, weight in net.named_parameters():
            kept[name] = weight.detach()  # CAUSE
            weight.add_(0.1 * weight.grad)
    backward()
    with framework.no_grad():
        for name, weight in net.named_parameters():
            put(weight, kept[name])
    optimizer.step()
    clear()
"""
)
# A step that is taken back.
STEP = (
    FIT
    + """
def look_ahead():
    start = [each.detach() for each in net.parameters()]  # CAUSE
    optimizer.step()
    with framework.no_grad():
        for weight, old in zip(net.parameters(), start):
            put(weight, old)
for step in range(8):
    backward()
    look_ahead()
    optimizer.step()
    clear()
"""
)
BUGS = {"attack": ATTACK, "step": STEP}
CLONED = ATTACK.replace("weight.detach()  # CAUSE", "weight.detach().clone()")
# Nothing changes between the two.
AT_ONCE = ATTACK.replace("  # CAUSE\n            weight.add_(0.1 * weight.grad)", "")
# What is made of a weight, worked on and written back.
WORKED_ON = (
    FIT
    + """
for step in range(8):
    backward()
    optimizer.step()
    with framework.no_grad():
        for weight in net.parameters():
            part = weight.detach()
            part.clip_(-0.1, 0.1)
            put(weight, part)
    clear()
"""
)
AVERAGED = (
    FIT
    + """
mean = [each.detach().clone() for each in net.parameters()]
for step in range(8):
    backward()
    optimizer.step()
    with framework.no_grad():
        for each, weight in zip(mean, net.parameters()):
            each.scale_(0.9) if hasattr(each, "scale_") else each.mul_(0.9)
            each.add_(0.1 * weight.detach())
    clear()
    mine = [each.detach().clone() for each in net.parameters()]
    with framework.no_grad():
        for each, weight in zip(mean, net.parameters()):
            put(weight, each)
        for each, weight in zip(mine, net.parameters()):
            put(weight, each)
"""
)
HEALTHY = {"cloned": CLONED, "at once": AT_ONCE, "worked on": WORKED_ON, "averaged": AVERAGED}
# torch alone has .data of its own, and a state dict of views.
TORCH = {
    "data": ATTACK.replace("weight.detach()", "weight.data")
    .replace("put(weight, kept[name])", "weight.data = kept[name]")
    .replace("weight.add_(", "weight.data.add_("),
    "data copied": STEP.replace("each.detach()", "each.data").replace("put(weight, old)", "weight.data.copy_(old)"),
    "state dict": FIT + """
for step in range(8):
    before = net.state_dict()  # CAUSE
    backward()
    optimizer.step()
    net.load_state_dict(before)
    clear()
    backward()
    optimizer.step()
    clear()
""",
}  # fmt: skip
TORCH_HEALTHY = {
    "exchanged": FIT + """
for step in range(8):
    backward()
    optimizer.step()
    clear()
    mine = [each.data for each in net.parameters()]
    for each in net.parameters():
        each.data = each.data * 0.5
        each.data.add_(0.1)
    backward()
    clear()
    for each, old in zip(net.parameters(), mine):
        each.data = old
""",
    "deep copy": TORCH["state dict"].replace("net.state_dict()  # CAUSE", "copy.deepcopy(net.state_dict())"),
    "tied": FIT + """
other = nn.Linear(8, 1)
other.weight = net[2].weight
for step in range(8):
    backward()
    optimizer.step()
    clear()
    other.load_state_dict(other.state_dict())
    net.load_state_dict(net.state_dict())
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    every = {**BUGS, **HEALTHY, **(TORCH | TORCH_HEALTHY if request.param == "torch" else {})}
    programs = {name: small_net(request.param, rate=0.01) + text for name, text in every.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-restored-{name}") for name in FRAMEWORKS], indirect=True
)
of_torch = pytest.mark.parametrize("runs", [case("torch", "torch", group="graphs-restored-torch")], indirect=True)


@each
@pytest.mark.parametrize("name", BUGS)
def test_the_line_that_keeps_no_copy(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("silent-overwrite")
    assert "from its own memory" in found["message"] and "hash of its values" in found["evidence"][-1], found


@of_torch
@pytest.mark.parametrize("name", TORCH)
def test_data_and_state_dicts(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("silent-overwrite")


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_copies_and_what_changes_nothing(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*(["undivided"] if name in ("cloned", "at once") else []))


@of_torch
@pytest.mark.parametrize("name", TORCH_HEALTHY)
def test_what_is_exchanged_or_loaded_at_once(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
