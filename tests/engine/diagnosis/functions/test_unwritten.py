"""Backwards that return memory which they fill in part, in functions of several shapes; what steps make of it is no
finding of its own. Witness: without diagnosis the memory is whatever lay there."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)
np.random.seed(0)
Function, noise, Module, empty = torch.autograd.Function, torch.randn, nn.Module, torch.empty
stack, asked, taken, zeros = torch.stack, torch.tensor, torch.from_numpy, torch.zeros
def made(net):
    return torch.optim.Adam(net.parameters(), 0.01), "zero_grad"
def top(x):
    return x.max(dim=0)
def junk(*shape):
    return torch.full(shape, 3e18)
""",
    "paddle": """
import numpy as np
import paddle
from paddle import nn
paddle.seed(0)
np.random.seed(0)
Function, Module, empty = paddle.autograd.PyLayer, nn.Layer, paddle.empty
stack, asked, taken, zeros = paddle.stack, paddle.to_tensor, paddle.to_tensor, paddle.zeros
def noise(*shape):
    return paddle.randn(shape)
def made(net):
    return paddle.optimizer.Adam(0.01, parameters=net.parameters()), "clear_grad"
def top(x):
    return x.max(axis=0), x.argmax(axis=0)
def junk(*shape):
    return paddle.full(shape, 3e18)
""",
}
TRAIN = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 1)
    def forward(self, x):
        return self.outer(run(self.inner(x)))
net = Net()
optimizer, clear = made(net)
for _ in range(8):
    loss = net(noise(12, 4)).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
# Lists of its own, whose names are used anew for what is made of them.
SEGMENTS = """
class Segments(Function):
    @staticmethod
    def forward(ctx, x):
        best, place = [], []
        for part in range(3):
            value, at = top(x[part * 4 : part * 4 + 4])
            best.append(value)
            place.append(at + part * 4)
        place = stack(place)
        ctx.save_for_backward(place)
        ctx.size = list(x.shape)
        return stack(best)
    @staticmethod
    def backward(ctx, grad_out):
        place, = SAVED
        grad = FRESH
        for column in range(ctx.size[1]):
            grad[place[:, column], column] = grad_out[:, column]
        return grad
def run(x):
    return Segments.apply(x)
"""
# By a function that it calls.
HELPER = """
def spread(values, rows, size):
    out = empty([size, int(values.shape[1])])  # CAUSE
    for number, row in enumerate(rows):
        out[row] = values[number]
    return out
class Rows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows, ctx.size = [1, 5, 7], int(x.shape[0])
        return stack([x[row] for row in ctx.rows])
    @staticmethod
    def backward(ctx, grad):
        return spread(grad, ctx.rows, ctx.size)
def run(x):
    return Rows.apply(x)
"""
# In NumPy's memory, of which the border is left out.
ARRAY = """
class Crop(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = tuple(x.shape)
        return x[2:-2] * 2
    @staticmethod
    def backward(ctx, grad):
        out = np.empty(ctx.size, "float64" if "64" in str(grad.dtype) else "float32")  # CAUSE
        out[2:-2] = 2 * grad.numpy()
        return taken(out)
def run(x):
    return Crop.apply(x)
"""
# It prints, so that it is not run again: what it gives is told where that is not finite, and no step is accused.
PRINTS = """
class Rows(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.size = list(x.shape)
        print("rows", ctx.size)
        return x[:3] * 2
    @staticmethod
    def backward(ctx, grad):
        out = empty(ctx.size)
        out[3:] = junk(ctx.size[0] - 3, ctx.size[1]) * 1e10 * 1e20  # what may lie there
        out[:3] = 2 * grad
        return out
def run(x):
    return Rows.apply(x)
"""
FULL = SEGMENTS.replace("FRESH", "zeros(ctx.size, dtype=grad_out.dtype)")
WHOLE = """
class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        parts, out = [], EMPTY
        for row in range(int(grad.shape[0])):
            out[row] = 2 * grad[row]
            parts.append(row)
        return out
def run(x):
    return Doubled.apply(x)
"""
OWN = {
    "torch": ("ctx.saved_tensors", "grad_out.new_empty(ctx.size)", "torch.empty_like(grad)"),
    "paddle": ("ctx.saved_tensor()", "paddle.empty(ctx.size, dtype=grad_out.dtype)", "paddle.empty_like(grad)"),
}
WRONG = {"segments": SEGMENTS.replace("FRESH", "FRESH  # CAUSE"), "helper": HELPER, "array": ARRAY}
RIGHT = {"zeros": FULL, "whole": WHOLE}
# Large gradients of a function that is not run again, from the first step on: Adam keeps the infinite square of them.
LARGE = PRINTS.replace(" * 1e10 * 1e20", "")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    saved, fresh, like = OWN[name]
    every = {**WRONG, **RIGHT, "prints": PRINTS, "large": LARGE}
    texts = {
        each: (HEAD[name] + text + TRAIN).replace("SAVED", saved).replace("FRESH", fresh).replace("EMPTY", like)
        for each, text in every.items()
    }
    return diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-unwritten-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_memory_that_is_filled_in_part(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("uninitialised")


@each
def test_not_run_again_but_not_finite(runs: dict[str, Run]) -> None:
    runs["prints"].check_first("nonfinite")


@each
def test_no_step_is_accused(runs: dict[str, Run]) -> None:
    kinds = {each["kind"] for name in (*WRONG, "prints", "large") for each in runs[name].above_notes()}
    assert "lost-update" not in kinds, "\n".join(map(str, runs.values()))


@each
@pytest.mark.parametrize("name", RIGHT)
def test_all_of_it_is_written(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
