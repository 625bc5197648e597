"""Values of a graph that are changed through a tensor that shares their memory, before an operator takes them."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each, kind_of, numbered
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
Module = nn.Module
framework.manual_seed(3)
noise = framework.randn
first, second = nn.Linear(4, 8), nn.Linear(8, 1)
opt = framework.optim.SGD([*first.parameters(), *second.parameters()], 0.01)
clear = opt.zero_grad
""",
    "paddle": """
import paddle as framework
from paddle import nn
Module = nn.Layer
framework.seed(3)
def noise(*shape):
    return framework.randn(shape)
first, second = nn.Linear(4, 8), nn.Linear(8, 1)
opt = framework.optimizer.SGD(0.01, parameters=[*first.parameters(), *second.parameters()])
clear = opt.clear_grad
""",
}
TRAIN = """
def train(run):
    for _ in range(4):
        loss = run(noise(6, 4)).pow(2).mean()
        clear(); loss.backward(); opt.step()
        print(loss.item())
"""
# A row of what an addition made, which saves nothing.
ROW = """
class Skip(Module):
    def forward(self, x):
        h = first(x) + 1.0
        plain = h.detach()
        plain[0] = 0.0  # CAUSE
        return second(h)
train(Skip())
"""
# Half of the units, in another function than the one that made them.
HALF = """
keep = framework.arange(8) < 4
def silence(values):
    shared = values.detach()
    shared.multiply_(keep.to(framework.float32))  # CAUSE
def run(x):
    mixed = first(x) - first(-x)
    silence(mixed)
    return second(mixed) + 0.1
train(run)
"""
# A clone that is rounded, noise that is added, what nothing of the graph takes any more, parameters, a mask without a
# gradient, and a change that is made on purpose.
HEALTHY = """
def rounded(x):
    y = x.clone()
    z = y.detach()
    z[:] = framework.round(z)
    return y
def shaken(h):
    h.detach().add_(noise(6, 8) * 0.1)
    return h
def run(x):
    first.weight.detach().clip_(-1.0, 1.0)
    h = shaken(first(x) + 1.0)
    out = second(rounded(h))
    log = first(x) + 2.0
    log.detach()[0] = 0.0
    print(log.shape)
    h.detach()[0] = 0.0
    mask = framework.ones_like(x)
    mask.detach()[0] = 0.0
    meant = first(x * mask) + 1.0
    with framework.no_grad():
        meant[0] = 0.0
    return out + second(meant)
train(run)
"""
# What a softmax is masked with.
MASKED = """
def run(x):
    scores = first(x) + 1.0
    scores.detach()[:, 3] = -1e9
    return second(framework.nn.functional.softmax(scores, -1))
train(run)
"""
CASES = [("silent-overwrite", ROW), ("silent-overwrite", HALF)]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    every = numbered(CASES) | {"healthy": HEALTHY, "masked": MASKED}
    texts = {name: HEAD[request.param] + TRAIN + text for name, text in every.items()}
    if request.param == "torch":  # the way that only torch has
        texts["data"] = texts["silent-overwrite 1"].replace("values.detach()", "values.data.view(-1, 8)")
        texts["binary"] = texts["silent-overwrite 1"].replace(
            "def silence", "# binarised: straight through\ndef silence"
        )
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-untracked-{name}") for name in FRAMEWORKS], indirect=True
)
on_torch = pytest.mark.parametrize("runs", [case("torch", "torch", group="graphs-untracked-torch")], indirect=True)


@each
@pytest.mark.parametrize("name", numbered(CASES))
def test_no_node_knows_of_the_change(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first(kind_of(name))
    assert found["severity"] == "warning" and "as if it had not" in found["message"], found


@on_torch
def test_through_data(runs: dict[str, Run]) -> None:
    assert runs["data"].check_first("silent-overwrite")["severity"] == "warning"


@on_torch
def test_an_estimator_that_says_so_is_a_note(runs: dict[str, Run]) -> None:
    runs["binary"].check_healthy("silent-overwrite")


@each
def test_changes_that_no_gradient_minds(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy(*[each["kind"] for each in runs["healthy"].told if each["severity"] == "note"])


@each
def test_a_mask_in_front_of_a_softmax_is_a_note(runs: dict[str, Run]) -> None:
    runs["masked"].check_healthy("silent-overwrite")
