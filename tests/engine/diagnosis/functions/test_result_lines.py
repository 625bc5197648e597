"""The line of a wrong gradient: where what is returned was filled, or the return where it only comes off the context.
The witness is the derivative on paper."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
Function, noise, whole = fw.autograd.Function, fw.randn, fw.tensor
def optimizer_of(parameters):
    return fw.optim.SGD(parameters, 0.01), "zero_grad"
def put(to, index, rows):
    to.index_add_(0, index, rows)
def rows_of(table, index):
    return table[index]
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
Function, noise, whole = fw.autograd.PyLayer, lambda *shape: fw.randn(shape), fw.to_tensor
def optimizer_of(parameters):
    return fw.optimizer.SGD(0.01, parameters=parameters), "clear_grad"
def put(to, index, rows):
    to.index_add_(index, 0, rows)
def rows_of(table, index):
    return fw.gather(table, index)
""",
}
ROWS = """
class Rows(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.count = table.shape[0]
        return rows_of(table, index)
    @staticmethod
    def backward(ctx, grad):
        (index,) = SAVED
        whole_grad = fw.zeros([ctx.count, grad.shape[1]])
        FILL
        return whole_grad, None
index = whole([0, 2, 2, 1, 2])
def run(net):
    return (Rows.apply(net.weight, index) * noise(5, 4)).sum() + net(noise(5, 4)).square().mean()
"""
SAVED = """
class Loss(Function):
    @staticmethod
    def forward(ctx, x, wanted):
        ctx.save_for_backward(2 * (x - wanted) / 32)
        return ((x - wanted) ** 2).mean()
    @staticmethod
    def backward(ctx, grad):
        (by_x,) = SAVED
        return BY_X
def run(net):
    return 0.2 * Loss.apply(net(noise(8, 4)), noise(8, 4))
"""
SIGN = """
class Half(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return fw.where(x > 0, x, 0.1 * x)
    @staticmethod
    def backward(ctx, grad):
        (x,) = SAVED
        by_x = grad.clone()
        by_x[x < 0] *= FACTOR
        return by_x
def run(net):
    return (Half.apply(net(noise(8, 4))) * noise(8, 4)).sum()
"""
TRAIN = """
net = nn.Linear(4, 4)
optimizer, clear = optimizer_of(net.parameters())
for _ in range(4):
    loss = run(net)
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
WRONG = {
    "one index several times": ROWS.replace("FILL", "whole_grad[index] += grad  # CAUSE"),
    "off the context": SAVED.replace("BY_X", "by_x, None  # CAUSE"),
    "in place": SIGN.replace("FACTOR", "0.5  # CAUSE"),
}
RIGHT = {
    "added": ROWS.replace("FILL", "put(whole_grad, index, grad)"),
    "multiplied": SAVED.replace("BY_X", "by_x * grad, None"),
    "slope": SIGN.replace("FACTOR", "0.1"),
}


def program(framework: str, text: str) -> str:
    saved = {"torch": "ctx.saved_tensors", "paddle": "ctx.saved_tensor()"}[framework]
    return HEAD[framework] + text.replace("= SAVED", f"= {saved}") + TRAIN


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {each: program(request.param, text) for each, text in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-lines-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_line_that_is_wrong(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-derivative")
    assert first["severity"] == "error"
    once = any("adds once where an index occurs several times" in line for line in first["evidence"])
    assert once == (name == "one index several times")


@each
@pytest.mark.parametrize("name", RIGHT)
def test_right_ones(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
