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
# A class method keeps it.
HELPER = """
class Quantise(Function):
    @classmethod
    def remember(cls, inside):
        cls.inside = inside
    @staticmethod
    def forward(ctx, x):
        inside = (x.abs() < 0.3).astype("float32") if hasattr(x, "astype") else (x.abs() < 0.3).float()
        Quantise.remember(inside)  # CAUSE
        return (x.clip(-0.3, 0.3) * 8).round() / 8
    @staticmethod
    def backward(ctx, grad):
        return grad * Quantise.inside
train(lambda x: net[3](Quantise.apply(net[2](Quantise.apply(net[0](x))))))
"""
# An object keeps it, which hands it out as well; two calls deep.
OBJECT = """
class Store:
    def keep(self, name, value):
        self._put(value)
        self.name = name
    def _put(self, value):
        self.value = value
    def last(self):
        return self.value
STORE = Store()
class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        gate = 1 / (1 + (-x).exp())
        STORE.keep("gate", gate)  # CAUSE
        return x * gate
    @staticmethod
    def backward(ctx, grad):
        gate = STORE.last()
        return grad * (gate + gate * (1 - gate))
train(lambda x: net[3](Swish.apply(net[2](Swish.apply(net[0](x))))))
"""
# A function writes an attribute of the module that it is handed; its name is a string.
BY_NAME = """
def note(owner, value):
    setattr(owner, "mask", value)
class Mask(Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        mask = framework.sign(noise(*x.shape)) * 0.5 + 0.5
        note(layer, mask)  # CAUSE
        return x * mask
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
# Two functions share one place.
SHARED = """
class Common(Function):
    @staticmethod
    def keep(value):
        Common.sign = value
class First(Common):
    @staticmethod
    def forward(ctx, x):
        Common.keep(framework.sign(x))  # CAUSE
        return x.abs()
    @staticmethod
    def backward(ctx, grad):
        return grad * Common.sign
class Second(Common):
    @staticmethod
    def forward(ctx, x):
        Common.keep(framework.sign(x) * 2)
        return x.abs() * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * Common.sign
train(lambda x: net[3](Second.apply(net[2](First.apply(net[0](x))))))
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
# The same by functions that are called: a running mean, what is made once, what lies on a stack, what is printed.
HELPED = """
class Norm(Function):
    amax, grid, stack, last, outer = noise(8), None, (), None, None
    @classmethod
    def observe(cls, now):
        cls.amax = now
    @classmethod
    def mixed(cls, x):
        old = cls.amax
        return 0.9 * old + 0.1 * x.detach().mean(0)
    @classmethod
    def prepare(cls, x):
        if cls.grid is None:
            cls.grid = framework.ones_like(x) * 0.5
    @classmethod
    def push(cls, value):
        cls.stack = (value, cls.stack)
        cls.last = value
        cls.top = value
    @classmethod
    def pop(cls):
        value, cls.stack = cls.stack
        cls.top = cls.stack[0] if cls.stack else None
        return value
    @classmethod
    def show(cls):
        return cls.last.shape
    @staticmethod
    def forward(ctx, x):
        Norm.observe(Norm.mixed(x))
        Norm.prepare(x)
        slope = 0.5 + 0.1 * framework.sign(x)
        Norm.push(slope)
        return x * slope
    @staticmethod
    def backward(ctx, grad):
        print(Norm.show())
        unused = Norm.top * 0
        return grad * Norm.pop() + 0 * Norm.amax + 0 * Norm.grid + unused
train(lambda x: net[3](Norm.apply(net[2](Norm.apply(net[0](x))))))
"""
# Each module is a place of its own, by way of its methods.
EACH_BY_METHOD = BY_NAME.replace("drop = Drop()", "drops = [Drop(), Drop()]").replace(
    "net[3](drop(net[2](drop(net[0](x)))))", "net[3](drops[0](net[2](drops[1](net[0](x)))))"
)
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

CASES = [("silent-overwrite", text) for text in (GLOBAL, CACHE, OWNER, HELPER, OBJECT, BY_NAME, SHARED)]


def programs(framework: str) -> dict[str, str]:
    result = "grad * layer.mask, None" if framework == "torch" else "grad * layer.mask"
    every = numbered(CASES) | {
        "each": EACH_ITS_OWN, "healthy": HEALTHY, "once": ONCE, "helped": HELPED, "method": EACH_BY_METHOD,
    }  # fmt: skip
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
@pytest.mark.parametrize("name", ["healthy", "helped", "each", "method"])
def test_what_calls_may_share(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*(["silent-overwrite"] if name in ("each", "method") else []))


@each
def test_one_call_before_each_backward_is_a_note(runs: dict[str, Run]) -> None:
    runs["once"].check_healthy("silent-overwrite")


@pytest.mark.parametrize("runs", [case("torch", "torch", group="functions-elsewhere-torch")], indirect=True)
def test_what_a_checkpoint_sets_again(runs: dict[str, Run]) -> None:
    runs["recomputed"].check_healthy("silent-overwrite")
