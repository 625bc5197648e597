"""Weights that code writes to which only wants to look at them. Witness: whether the weights are the same behind it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
noise, clone = framework.randn, framework.clone
def adam(parameters):
    return framework.optim.Adam(parameters, lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
noise, clone = lambda *shape: framework.randn(shape), framework.clone
def adam(parameters):
    return framework.optimizer.Adam(0.01, parameters=parameters)
def clear(optimizer):
    optimizer.clear_grad()
""",
}
RUN = """
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
LOOK
optimizer = adam(net.parameters())
for epoch in range(4):
    for _ in range(6):
        loss = (net(noise(8, 4)) - 1).square().mean()
        clear(optimizer)
        loss.backward()
        optimizer.step()
    before = clone(net[0].weight.detach())
    USE
    print("the same", bool((before == net[0].weight.detach()).all()))
"""


def _program(look: str, use: str) -> str:
    return RUN.replace("LOOK", look).replace("USE", use)


BUGGY = {
    "handed": _program("""
class Report:
    def share(self, weight, limit):
        w = weight.detach()  # CAUSE
        w[w.abs() < limit] = 0.0
        return float((w == 0).astype_float().mean())
    def __call__(self):
        print([self.share(p, 0.1) for p in net.parameters() if p.ndim == 2])
report = Report()
""", "report()"),
    "in a loop": _program("""
def print_energy(model):
    for name, p in model.named_parameters():
        values = p.detach().reshape([-1])  # CAUSE
        values.multiply_(values)
        print(name, float(values.sum()))
""", "print_energy(net)"),
    "an attribute": _program("""
def spread():
    total = 0.0
    for layer in (net[0], net[2]):
        flat = layer.weight.detach()  # CAUSE
        flat.abs_()
        total += float(flat.max())
    return total
""", "print(spread())"),
}  # fmt: skip
HEALTHY = {
    "a clone": _program("""
def share(weight):
    w = weight.detach().clone()
    w[w.abs() < 0.1] = 0.0
    return float((w == 0).astype_float().mean())
""", "print([share(p) for p in net.parameters()])"),
    "pruned": _program("""
def prune(weight):
    w = weight.detach()
    w[w.abs() < 0.01] = 0.0
    return float((w == 0).astype_float().mean())
""", "print([prune(p) for p in net.parameters()])"),
    "without gradients": _program("""
def sparse(weight):
    with framework.no_grad():
        w = weight.detach()
        w[w.abs() < 0.01] = 0.0
        return float((w == 0).astype_float().mean())
""", "print([sparse(p) for p in net.parameters()])"),
    # It looks at outputs, while others halve the weights.
    "of outputs": _program("""
def share(out):
    w = out.detach()
    w[w < 0] = 0.0
    return float((w == 0).astype_float().mean())
def halve():
    for p in net.parameters():
        p.detach().multiply_(framework.full([1], 0.5))
""", "print(share(net(noise(8, 4)))); halve()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    cast = "float()" if request.param == "torch" else 'astype("float32")'
    programs = {name: text.replace("astype_float()", cast) for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(
        request.param, tmp_path_factory.mktemp("programs"), {n: HEAD[request.param] + t for n, t in programs.items()}
    )


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-looked-at-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_look_that_writes(runs: dict[str, Run], name: str) -> None:
    assert "the same False" in runs[name].plain, f"it is as the program says\n{runs[name]}"
    assert runs[name].check_first("silent-overwrite")["severity"] == "warning"


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_looks_only_or_writes_on_purpose(runs: dict[str, Run], name: str) -> None:
    assert "Error" not in runs[name].plain, str(runs[name])
    runs[name].check_healthy()
