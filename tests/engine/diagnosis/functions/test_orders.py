"""Custom functions whose backward returns right gradients in a wrong order, or takes what was saved in another one."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
Function, noise, Module = torch.autograd.Function, torch.randn, nn.Module
sigmoid, sin, cos = torch.sigmoid, torch.sin, torch.cos
def made(net):
    return torch.optim.SGD(net.parameters(), 0.01), "zero_grad"
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
Function, noise, Module = paddle.autograd.PyLayer, lambda *shape: paddle.randn(shape), nn.Layer
sigmoid, sin, cos = paddle.nn.functional.sigmoid, paddle.sin, paddle.cos
def made(net):
    return paddle.optimizer.SGD(0.01, parameters=net.parameters()), "clear_grad"
""",
}
TRAIN = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.LIST([nn.Linear(4, 6) for _ in range(3)])
    def forward(self, x):
        return run(*[each(x) for each in self.parts])
net = Net()
optimizer, clear = made(net)
for _ in range(4):
    loss = net(noise(8, 4)).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
TWO = """
class Gate(Function):
    @staticmethod
    def forward(ctx, value, gate):
        ctx.save_for_backward(value, gate)
        return value * sigmoid(gate)
    @staticmethod
    def backward(ctx, grad):
        value, gate = SAVED
        s = sigmoid(gate)
        by_gate = grad * value * s * (1 - s)
        return RETURN
def run(a, b, c):
    return Gate.apply(a, b) + c
"""
# In a circle of three, by way of a variable.
THREE = """
class Blend(Function):
    @staticmethod
    def forward(ctx, a, b, c):
        ctx.save_for_backward(a, b, c)
        return a * b + sin(c) * a
    @staticmethod
    def backward(ctx, grad):
        a, b, c = SAVED
        found = (grad * cos(c) * a, grad * (b + sin(c)), grad * a)  # CAUSE
        return found
def run(a, b, c):
    return Blend.apply(a, b, c)
"""
# One of four is right, and there is a number among the inputs.
SOME = """
class Mixed(Function):
    @staticmethod
    def forward(ctx, a, b, c, d):
        ctx.save_for_backward(a, b, c, d)
        return a * a * b + sin(c) * d
    @staticmethod
    def backward(ctx, grad):
        a, b, c, d = SAVED
        by_a = 2 * grad * a * b
        by_b = grad * a * a
        by_c, by_d = grad * cos(c) * d, grad * sin(c)
        return by_a, by_d, by_c, by_b  # CAUSE
def run(a, b, c):
    return Mixed.apply(a, b, c, a + c)
"""
PRODUCT = """
class Product(Function):
    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(one, other)
        return ONE * other
    @staticmethod
    def backward(ctx, grad):
        other, one = SAVED  # CAUSE
        return RETURN
def run(a, b, c):
    return Product.apply(a, b) + c
"""
# Symmetric: the same, whichever of them it is returned for; and names of its own for what was saved.
SUM = """
class Sum(Function):
    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(one, other)
        return sin(one + other)
    @staticmethod
    def backward(ctx, grad):
        one, other = SAVED
        slope = grad * cos(other + one)
        return slope, slope
def run(a, b, c):
    return Sum.apply(a, b) + c
"""
RENAMED = """
class Product(Function):
    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(other, one)
        return one * one * other
    @staticmethod
    def backward(ctx, grad):
        factor, base = SAVED
        by_one, by_other = 2 * grad * base * factor, grad * base * base
        return by_one, by_other
def run(a, b, c):
    return Product.apply(a, b) + c
"""
OWN = {"torch": ("ModuleList", "ctx.saved_tensors"), "paddle": ("LayerList", "ctx.saved_tensor()")}
WRONG = {
    "two": TWO.replace("RETURN", "by_gate, grad * s  # CAUSE"),
    "three": THREE,
    "some": SOME,
    "taken": PRODUCT.replace("ONE", "one").replace("RETURN", "grad * other, grad * one"),
    "taken, no exchange": PRODUCT.replace("ONE", "one * one").replace(
        "RETURN", "2 * grad * one * other, grad * one * one"
    ),
}  # fmt: skip
RIGHT = {"right": TWO.replace("RETURN", "grad * s, by_gate"), "sum": SUM, "renamed": RENAMED}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    both = {each: HEAD[name] + text + TRAIN for each, text in {**WRONG, **RIGHT}.items()}
    texts = {each: text.replace("LIST", OWN[name][0]).replace("SAVED", OWN[name][1]) for each, text in both.items()}
    return diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-orders-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_one_finding_with_the_line(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-derivative")
    assert len(runs[name].above_notes()) == 1, str(runs[name])
    words = {"taken": "in another order", "taken, no exchange": "derivative"}.get(name, "in the wrong order")
    assert words in first["message"], first["message"]


@each
@pytest.mark.parametrize("name", RIGHT)
def test_right_ones(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
