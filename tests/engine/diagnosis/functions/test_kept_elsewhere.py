"""Custom functions whose forward keeps on anything but its context what their backward reads."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each, kind_of, numbered
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
from torch.autograd import Function
Module = nn.Module
framework.manual_seed(3)
def noise(*shape):
    return framework.randn(*shape)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
opt = framework.optim.SGD(net.parameters(), 0.01)
clear = opt.zero_grad
""",
    "paddle": """
import paddle as framework
from paddle import nn
from paddle.autograd import PyLayer as Function
Module = nn.Layer
framework.seed(3)
def noise(*shape):
    return framework.randn(shape)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
opt = framework.optimizer.SGD(0.01, parameters=net.parameters())
clear = opt.clear_grad
""",
}
TRAIN = """
def train(run):
    for _ in range(5):
        loss = run(noise(5, 4)).pow(2).mean()
        clear(); loss.backward(); opt.step()
        print(float(loss))
"""
# A global name; one after the other.
GLOBAL = """
GATE = None
class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        global GATE
        GATE = 1 / (1 + (-x).exp())  # CAUSE
        return x * GATE
    @staticmethod
    def backward(ctx, grad):
        gate = GATE
        return grad * (gate + gate * (1 - gate))
train(lambda x: net[3](Swish.apply(net[2](Swish.apply(net[0](x))))))
"""
# A dictionary that two views of a batch share.
CACHE = """
cache = {}
class Scale(Function):
    @staticmethod
    def forward(ctx, rows):
        size = (rows * rows).sum(1, keepdim=True) + 1
        out = rows / size
        cache["size"], cache["calls"] = size, 1  # CAUSE
        return out
    @staticmethod
    def backward(ctx, grad):
        return grad / cache["size"]
def twins(x):
    return net[3](net[2](Scale.apply(net[0](x)) - Scale.apply(net[0](-2 * x))))
train(twins)
"""
# A module that is handed over, and called twice.
OWNER = """
class Mask(Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        layer.mask = framework.sign(noise(*x.shape)) * 0.5 + 0.5  # CAUSE
        return x * layer.mask
    @staticmethod
    def backward(ctx, grad):
        layer = ctx.layer
        return RESULT
class Drop(Module):
    def forward(self, x):
        return Mask.apply(x, self)
drop = Drop()
train(lambda x: net[3](drop(net[2](drop(net[0](x))))))
"""
# One object for each call: each has its own.
EACH_ITS_OWN = OWNER.replace("drop = Drop()", "drops = [Drop(), Drop()]").replace(
    "net[3](drop(net[2](drop(net[0](x)))))", "net[3](drops[0](net[2](drops[1](net[0](x)))))"
)
# A running statistic, what is made once, what is printed, and what backward restores.
HEALTHY = """
class Norm(Function):
    amax, grid, last, inner = noise(8), None, None, noise(8)
    @staticmethod
    def forward(ctx, x):
        Norm.amax = 0.9 * Norm.amax + 0.1 * x.detach().mean(0)
        if Norm.grid is None:
            Norm.grid = framework.ones_like(x) * 0.5
        Norm.last = x * 1
        ctx.before = Norm.inner
        Norm.inner = x.detach() * 1
        return x * Norm.grid
    @staticmethod
    def backward(ctx, grad):
        print(Norm.last.shape)
        factor = 0.5 + 0 * Norm.amax + 0 * Norm.inner
        Norm.inner = ctx.before
        return grad * factor
train(lambda x: net[3](Norm.apply(net[2](Norm.apply(net[0](x))))))
"""
ONCE = """
class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        Swish.gate = 1 / (1 + (-x).exp())
        return x * Swish.gate
    @staticmethod
    def backward(ctx, grad):
        s = Swish.gate
        return grad * (s + s * (1 - s))
train(lambda x: net[3](net[2](Swish.apply(net[0](x)))))
"""
# Each backward reads what the checkpoint has just computed again.
RECOMPUTED = """
from torch.utils.checkpoint import checkpoint
class Soft(Function):
    @staticmethod
    def forward(ctx, x):
        Soft.size = 1 + x.abs()
        ctx.save_for_backward(x)
        return x / Soft.size
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad / Soft.size ** 2 + 0 * x
def run(x):
    h = checkpoint(lambda x: Soft.apply(net[0](x)), x, use_reentrant=False)
    return net[3](checkpoint(lambda h: Soft.apply(net[2](h)), h, use_reentrant=False))
train(run)
"""

CASES = [("silent-overwrite", GLOBAL), ("silent-overwrite", CACHE), ("silent-overwrite", OWNER)]


def programs(framework: str) -> dict[str, str]:
    result = "grad * layer.mask, None" if framework == "torch" else "grad * layer.mask"
    every = numbered(CASES) | {"each": EACH_ITS_OWN, "healthy": HEALTHY, "once": ONCE}
    if framework == "torch":
        every["recomputed"] = RECOMPUTED
    return {name: HEAD[framework] + TRAIN + text.replace("RESULT", result) for name, text in every.items()}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs(request.param))


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"functions-elsewhere-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", numbered(CASES))
def test_a_later_call_sets_it_anew(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first(kind_of(name))
    assert found["severity"] == "error" and "computes with the values of another call" in found["message"], found


@each
@pytest.mark.parametrize("name", ["healthy", "each"])
def test_what_calls_may_share(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*(["silent-overwrite"] if name == "each" else []))


@each
def test_one_call_before_each_backward_is_a_note(runs: dict[str, Run]) -> None:
    runs["once"].check_healthy("silent-overwrite")


@pytest.mark.parametrize("runs", [case("torch", "torch", group="functions-elsewhere-torch")], indirect=True)
def test_what_a_checkpoint_sets_again(runs: dict[str, Run]) -> None:
    runs["recomputed"].check_healthy("silent-overwrite")
