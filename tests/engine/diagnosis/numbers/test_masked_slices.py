"""A slice of which all is masked with -inf: its logsumexp is -inf, and the derivative of that NaN. The line that masks
is named. Witness: the framework's own gradient."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
Module = nn.Module
def table(rows, columns):
    return nn.Parameter(0.1 * framework.randn(rows, columns))
def rows(*shape):
    return framework.randn(*shape)
def ends(values):
    return framework.logsumexp(values, 1)
def sgd(module):
    return framework.optim.SGD(module.parameters(), 0.05)
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
Module = nn.Layer
def table(rows, columns):
    kept = framework.create_parameter([rows, columns], "float32")
    kept.set_value(0.1 * framework.randn([rows, columns]))
    return kept
def rows(*shape):
    return framework.randn(shape)
def ends(values):
    return framework.logsumexp(values, 1)
def sgd(module):
    return framework.optimizer.SGD(0.05, parameters=module.parameters())
""",
}
# No label comes before the first one: its column is masked altogether.
TAGGER = """
class Chain(Module):
    def __init__(self):
        super().__init__()
        self.steps = table(4, 4)
        self.barred = framework.ones([4, 4]).tril() > 0
    def scores(self):
        return self.steps.masked_fill(self.barred, float("-inf"))  # CAUSE
    def forward(self, given):
        alpha, scores = given[:, 0], self.scores()
        for at in range(1, 4):
            alpha = ends(alpha.unsqueeze(2) + scores) + given[:, at]
        return ends(alpha)
net = Chain()
optimizer = sgd(net)
for _ in range(6):
    loss = net(rows(5, 4, 4)).mean()
    loss.backward()
    optimizer.step()
    CLEAR
print("nan", bool(net.steps.isnan().any()))
"""
LARGE = TAGGER.replace('float("-inf")', "-1e4").replace("  # CAUSE", "")
# Each column has something that is allowed.
SOME = TAGGER.replace("self.barred = framework.ones([4, 4]).tril() > 0", "self.barred = framework.eye(4) > 0").replace(
    "  # CAUSE", ""
)
PROGRAMS = {"all masked": TAGGER, "a large number": LARGE, "some masked": SOME}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    clear = "optimizer.zero_grad()" if request.param == "torch" else "optimizer.clear_grad()"
    texts = {name: HEAD[request.param] + text.replace("CLEAR", clear) for name, text in PROGRAMS.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"masked-slices-{name}") for name in FRAMEWORKS], indirect=True
)


@each
def test_the_line_that_masks(runs: dict[str, Run]) -> None:
    assert "nan True" in runs["all masked"].plain
    found = runs["all masked"].check_first("nonfinite")
    assert "overflows" not in found["message"], found


@each
@pytest.mark.parametrize("name", ["a large number", "some masked"])
def test_what_has_a_derivative(runs: dict[str, Run], name: str) -> None:
    assert "nan False" in runs[name].plain
    runs[name].check_healthy()
