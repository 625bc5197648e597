"""Custom functions whose backward returns another number of gradients than forward took arguments: the ``return`` that
ran is named."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
Function, noise = framework.autograd.Function, framework.randn
def kept(ctx):
    return ctx.saved_tensors
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
Function, noise = framework.autograd.PyLayer, lambda *shape: framework.randn(shape)
def kept(ctx):
    return ctx.saved_tensor()
""",
}
TRAIN = """
one, two, three = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(4, 6)
for _ in range(3):
    x = noise(8, 4)
    run(one(x), two(x), three(x)).square().mean().backward()
"""
# What it returns is a variable, computed further up.
FEW = """
class Gate(Function):
    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(x, gate)
        return x * gate
    @staticmethod
    def backward(ctx, grad):
        x, gate = kept(ctx)
        by_x = grad * gate
        return by_x  # CAUSE
run = lambda one, two, three: Gate.apply(one, two) + three
"""
MANY = """
class Blend(Function):
    @staticmethod
    def forward(ctx, x, y):
        return 0.3 * x + 0.7 * y
    @staticmethod
    def backward(ctx, grad):
        by_x = 0.3 * grad
        by_y = 0.7 * grad
        return by_x, by_y, grad * 0.1  # CAUSE
run = lambda one, two, three: Blend.apply(one, two) + three
"""
# Of three ways out, one forgets the last.
BRANCH = """
class Mix(Function):
    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(x)
        return x + y + z
    @staticmethod
    def backward(ctx, grad):
        x, = kept(ctx)
        if x.shape[0] > 100:
            return grad, grad, grad
        if x.shape[1] == 6:
            return grad * 1.0, grad  # CAUSE
        grads = (grad, 2 * grad, grad)
        return grads
run = Mix.apply
"""
NONES = """
class Pick(Function):
    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(x)
        return x + y + z
    @staticmethod
    def backward(ctx, grad):
        x, = kept(ctx)
        if x.shape[0] > 100:
            return None, grad
        return grad, grad  # CAUSE
run = Pick.apply
"""
# Two of a kind: which one ran cannot be told.
ALIKE = """
class Pick(Function):
    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(x)
        return x + y + z
    @staticmethod
    def backward(ctx, grad):  # CAUSE
        x, = kept(ctx)
        if x.shape[0] > 100:
            return grad * 2, grad
        return grad, grad
run = Pick.apply
"""
WRONG = {"few": FEW, "many": MANY, "branch": BRANCH, "nones": NONES, "alike": ALIKE}
RIGHT = {
    "right": FEW.replace("return by_x  # CAUSE", "return by_x, grad * x"),
    "branches": BRANCH.replace("return grad * 1.0, grad  # CAUSE", "return (grad,) * 3").replace("2 * grad", "grad"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {each: HEAD[request.param] + text + TRAIN for each, text in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-counts-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_return_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("function-contract")
    assert len(runs[name].above_notes()) == 1, str(runs[name])


@each
@pytest.mark.parametrize("name", RIGHT)
def test_right_ones(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
