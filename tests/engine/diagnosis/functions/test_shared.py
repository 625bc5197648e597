"""Custom functions whose backward computes one variable wrongly, of which several gradients are made; and words in
which "STE" is no straight-through estimator. The witness is the derivative on paper."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

from adbg.engine.diagnosis.detectors.functions.surrogates import WORDS

HEAD = {
    "torch": """
import torch as fw
from torch import nn
fw.manual_seed(0)
Function, noise = fw.autograd.Function, fw.randn
solve, eye, sin, cos, exp = fw.linalg.solve, fw.eye, fw.sin, fw.cos, fw.exp
def kept(ctx):
    return ctx.saved_tensors
def turned(x):
    return x.transpose(-1, -2)
def other(x):  # it needs no gradient: looked at since that of the matrix is wrong
    return source
def made(net):
    return fw.optim.SGD(net.parameters(), 0.01), "zero_grad"
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
Function, noise = fw.autograd.PyLayer, lambda *shape: fw.randn(shape)
solve, eye, sin, cos, exp = fw.linalg.solve, fw.eye, fw.sin, fw.cos, fw.exp
def kept(ctx):
    return ctx.saved_tensor()
def turned(x):
    return x.transpose([1, 0])
def other(x):  # of what needs none a PyLayer must give None
    return source + 0.1 * x[:, :2]
def made(net):
    return fw.optimizer.SGD(0.01, parameters=net.parameters()), "clear_grad"
""",
}
TRAIN = """
net = nn.Linear(4, 4)
optimizer, clear = made(net)
for _ in range(4):
    loss = run(net(noise(4, 4))).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
STEADY = """
class SteadySystem(Function):
    @staticmethod
    def forward(ctx, matrix, source):
        state = solve(matrix, source)
        ctx.save_for_backward(matrix, state)
        return state
    @staticmethod
    def backward(ctx, grad):
        \"\"\"One step of the adjoint.\"\"\"
        matrix, state = kept(ctx)
        adjoint = SOLVED
        by_matrix = by_source = None
        by_matrix = -adjoint @ turned(state)
        by_source = adjoint
        return by_matrix, by_source
source = noise(4, 2)
def run(x):
    return SteadySystem.apply(0.1 * x + 2 * eye(4), other(x))
"""
# Of three, two are made of it, and one is right.
THREE = """
class Wave(Function):
    @staticmethod
    def forward(ctx, x, rate, height):
        ctx.save_for_backward(x, rate, height)
        return height * sin(rate * x)
    @staticmethod
    def backward(ctx, grad):
        x, rate, height = kept(ctx)
        phase = rate * x
        by_phase = SLOPE
        by_height = grad * sin(phase)
        return by_phase * rate, by_phase * x, by_height
def run(x):
    return Wave.apply(x, x + 1, x * x)
"""
# Both are wrong by a slip of their own.
APART = """
class Pair(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * x * exp(y)
    @staticmethod
    def backward(ctx, grad):
        x, y = kept(ctx)
        by_x = grad * x * exp(y)  # CAUSE
        by_y = grad * x * exp(y)
        return by_x, by_y
def run(x):
    return Pair.apply(x, 0.1 * x)
"""
# A threshold that many elements are close to, with sign() in its forward: no straight-through estimator, since what it
# gives x is right.
SHRINK = """
class Shrink(Function):
    @staticmethod
    def forward(ctx, x, theta):
        keep = (x.abs() > theta).astype(x.dtype) if hasattr(x, "astype") else (x.abs() > theta).to(x.dtype)
        ctx.save_for_backward(x, keep)
        return keep * (x - fw.sign(x) * theta)
    @staticmethod
    def backward(ctx, grad):
        x, keep = kept(ctx)
        by_theta = SLOPE
        return grad * keep, by_theta
def run(x):
    wide = noise(1000, 16) * x.mean()
    return Shrink.apply(wide, (x * x).mean() * fw.ones([16]))
"""
# A variable that is given a value twice: which one a gradient is made of is not told.
TWICE = """
class Twice(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b
    @staticmethod
    def backward(ctx, grad):
        a, b = kept(ctx)
        g = grad * 2
        by_a = g * b  # CAUSE
        g = g * a
        return by_a, g
def run(x):
    return Twice.apply(x, x + 1)
"""
WRONG = {
    "given twice": TWICE,
    "a threshold": SHRINK.replace("SLOPE", "(grad * keep * fw.sign(x)).sum(0)  # CAUSE"),
    "of an adjoint": STEADY.replace("SOLVED", "solve(matrix, grad)  # CAUSE"),
    "two of three": THREE.replace("SLOPE", "grad * height * sin(phase)  # CAUSE"),
    "each by itself": APART,
}
RIGHT = {
    "solved": STEADY.replace("SOLVED", "solve(turned(matrix), grad)"),
    "threshold": SHRINK.replace("SLOPE", "-(grad * keep * fw.sign(x)).sum(0)"),
    "three": THREE.replace("SLOPE", "grad * height * cos(phase)"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {each: HEAD[request.param] + text + TRAIN for each, text in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-shared-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_line_that_all_wrong_ones_are_made_of(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-derivative")
    assert first["severity"] == "error", "a system and a step are no straight-through estimators"
    shared = any("all made of what this line computes" in line or "are all wrong" in line for line in first["evidence"])
    assert shared == (name not in ("each by itself", "a threshold", "given twice")), first


@each
@pytest.mark.parametrize("name", RIGHT)
def test_right_ones(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


def test_what_is_called_a_straight_through_estimator() -> None:
    called = ["SignSTE", "STEQuant", "RoundSte", "an STE of it", "my_ste", "straight through", "SurrogateSpike"]
    others = ["SteadySolve", "System", "SYSTEM", "Step", "STEPS", "every step of it", "Cluster", "LeakyIntegrate"]
    assert [text for text in called if not WORDS.search(text)] == []
    assert [text for text in others if WORDS.search(text)] == []
