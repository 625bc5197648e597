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
array = framework.as_tensor
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
array = framework.to_tensor
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
        return grad * layer.mask, NONE
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
        return grad * layer.mask, NONE
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
# Several tensors in a dictionary on the class, which backward looks up one after the other, or in a generator.
DICTIONARY = """
class SoftClip(Function):
    saved = None
    @staticmethod
    def forward(ctx, x):
        t = framework.tanh(x)
        SoftClip.saved = {"x": x, "t": t}  # CAUSE
        return t + 0.1 * x
    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - SoftClip.saved["t"] ** 2 + 0.1) + 0 * SoftClip.saved["x"]
train(lambda x: net[3](SoftClip.apply(net[2](SoftClip.apply(net[0](x))))))
"""
GENERATOR = DICTIONARY.replace(
    '        return grad * (1 - SoftClip.saved["t"] ** 2 + 0.1) + 0 * SoftClip.saved["x"]\n',
    '        x, t = (SoftClip.saved[name] for name in ("x", "t"))\n        return grad * (1 - t ** 2 + 0.1) + 0 * x\n',
)
# It is made first, and filled then; by a keyword; among numbers and shapes.
FILLED = DICTIONARY.replace('{"x": x, "t": t}  # CAUSE', '{"x": x}  # CAUSE\n        SoftClip.saved["t"] = t')
AMONG = DICTIONARY.replace('{"x": x, "t": t}', 'dict(rate=0.1, shape=x.shape, x=x, t=t, mode="soft")')
# A tuple in a global name, which backward unpacks.
TUPLE = """
SAVED = ()
class SoftClip(Function):
    @staticmethod
    def forward(ctx, x):
        global SAVED
        t = framework.tanh(x)
        SAVED = (x, t)  # CAUSE
        return t + 0.1 * x
    @staticmethod
    def backward(ctx, grad):
        x, t = SAVED
        return grad * (1 - t ** 2 + 0.1) + 0 * x
train(lambda x: net[3](SoftClip.apply(net[2](SoftClip.apply(net[0](x))))))
"""
# As many as are looked at, of which the last alone differs from call to call.
EIGHT = (
    TUPLE.replace("SAVED = (x, t)", "SAVED = (*[framework.ones([3])] * 7, t)")
    .replace("x, t = SAVED", "*ones, t = SAVED")
    .replace("+ 0 * x", "+ 0 * ones[0].sum()")
)
# A list on the class, set by a class method, of arrays.
LIST = """
import numpy as np
class SoftClip(Function):
    saved = []
    @classmethod
    def remember(cls, *values):
        cls.saved = [each.detach().numpy().copy() for each in values]
    @staticmethod
    def forward(ctx, x):
        SoftClip.remember(x, 0.5 * (framework.sign(0.3 - x.abs()) + 1))  # CAUSE
        return x.clip(-0.3, 0.3)
    @staticmethod
    def backward(ctx, grad):
        first, inside = SoftClip.saved
        return grad * array(inside)
train(lambda x: net[3](SoftClip.apply(net[2](SoftClip.apply(net[0](x))))))
"""
# A dictionary of a dictionary's, under one key.
WITHIN = """
cache = {}
class SoftClip(Function):
    @staticmethod
    def forward(ctx, x):
        t = framework.tanh(x)
        cache["soft clip"] = [x, t]  # CAUSE
        return t + 0.1 * x
    @staticmethod
    def backward(ctx, grad):
        t = cache["soft clip"][1]
        return grad * (1 - t ** 2 + 0.1)
train(lambda x: net[3](SoftClip.apply(net[2](SoftClip.apply(net[0](x))))))
"""
# A dictionary on a module that is handed over, and called twice.
OWNED = OWNER.replace(
    "        layer.mask = framework.sign(noise(*x.shape)) * 0.5 + 0.5  # CAUSE\n        return x * layer.mask\n",
    """        mask = framework.sign(noise(*x.shape)) * 0.5 + 0.5
        layer.saved = {"x": x.detach(), "mask": mask}  # CAUSE
        return x * mask
""",
).replace("layer.mask, NONE", 'layer.saved["mask"], NONE')
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
# Containers of the same values in each call, of no tensors, on a stack, and one for each layer.
SAME = """
class Clip(Function):
    saved = {}
    @staticmethod
    def forward(ctx, x):
        Clip.saved.clear()
        Clip.saved = {"low": framework.full([8], -0.3), "high": framework.full([8], 0.3)}
        ctx.save_for_backward(x)
        return x.clip(-0.3, 0.3)
    @staticmethod
    def backward(ctx, grad):
        x, = TENSORS
        low, high = Clip.saved["low"], Clip.saved["high"]
        return grad * 0.25 * (framework.sign(x - low) + 1) * (framework.sign(high - x) + 1)
train(lambda x: net[3](Clip.apply(net[2](Clip.apply(net[0](x))))))
"""
SHAPES = """
ABOUT = None
class Flat(Function):
    @staticmethod
    def forward(ctx, x):
        global ABOUT
        ABOUT = {"shape": tuple(x.shape), "scale": 2.0, "one": framework.full([1], float(x.detach().abs().max()))}
        return x.reshape([-1]) * 2
    @staticmethod
    def backward(ctx, grad):
        return grad.reshape(ABOUT["shape"]) * ABOUT["scale"]
train(lambda x: net[3](Flat.apply(net[2](Flat.apply(net[0](x)).reshape([5, 8]))).reshape([5, 8])))
"""
STACK = """
class SoftClip(Function):
    stack = []
    @staticmethod
    def forward(ctx, x):
        t = framework.tanh(x)
        SoftClip.stack.append(t)
        return t
    @staticmethod
    def backward(ctx, grad):
        t = SoftClip.stack.pop()
        return grad * (1 - t ** 2)
train(lambda x: net[3](SoftClip.apply(net[2](SoftClip.apply(net[0](x))))))
"""
PUSHED = STACK.replace(".append(t)", " = [*SoftClip.stack, t]").replace(
    "SoftClip.stack.pop()", "SoftClip.stack[-1]\n        del SoftClip.stack[-1]"
)
LAYERS = """
saved = {}
class SoftClip(Function):
    @staticmethod
    def forward(ctx, x, name):
        t = framework.tanh(x)
        saved[name] = t
        ctx.name = name
        return t
    @staticmethod
    def backward(ctx, grad):
        t = saved[ctx.name]
        return grad * (1 - t ** 2), NONE
train(lambda x: net[3](SoftClip.apply(net[2](SoftClip.apply(net[0](x), "first")), "second")))
"""
# The same dictionary, which the class has as well; and emptied in front of each batch.
TABLE = LAYERS.replace("saved[name] = t\n", "saved[name] = t\n        SoftClip.table = saved\n").replace(
    "t = saved[ctx.name]", "t = SoftClip.table[ctx.name]"
)
TABLE_ANEW = TABLE.replace("train(lambda x: net", "train(lambda x: saved.clear() or net")
# Of what a dictionary has, backward takes what is no tensor, or the shape of one, or what all calls set alike.
ENTRY = """
class Flat(Function):
    saved = {}
    @staticmethod
    def forward(ctx, x):
        Flat.saved = {"x": x.detach(), "shape": tuple(x.shape)}
        return x.reshape([-1]) * 2
    @staticmethod
    def backward(ctx, grad):
        return grad.reshape(Flat.saved["shape"]) * 2
train(lambda x: net[3](Flat.apply(net[2](Flat.apply(net[0](x)).reshape([5, 8]))).reshape([5, 8])))
"""
SHAPE_OF_ONE = ENTRY.replace('Flat.saved["shape"])', 'Flat.saved["x"].shape)')
ALIKE = ENTRY.replace('"shape": tuple(x.shape)', '"two": framework.full([8], 2.0)').replace(
    'grad.reshape(Flat.saved["shape"]) * 2', 'grad.reshape([5, 8]) * Flat.saved["two"]'
)
# Each module is a place of its own, and a function that is called once before each backward.
EACH_OWNED = OWNED.replace("drop = Drop()", "drops = [Drop(), Drop()]").replace(
    "net[3](drop(net[2](drop(net[0](x)))))", "net[3](drops[0](net[2](drops[1](net[0](x)))))"
)
DICTIONARY_ONCE = DICTIONARY.replace(
    "SoftClip.apply(net[2](SoftClip.apply(net[0](x))))", "net[2](SoftClip.apply(net[0](x)))"
)
TUPLE_ONCE = TUPLE.replace("SoftClip.apply(net[2](SoftClip.apply(net[0](x))))", "net[2](SoftClip.apply(net[0](x)))")
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
SEVERAL = {
    "several, a dictionary": DICTIONARY, "several, by a generator": GENERATOR, "several, filled": FILLED,
    "several, among others": AMONG, "several, a tuple": TUPLE, "several, eight": EIGHT, "several, a list": LIST,
    "several, within": WITHIN, "several, owned": OWNED,
}  # fmt: skip
SHARED_WELL = {
    "the same": SAME, "shapes": SHAPES, "stack": STACK, "pushed": PUSHED, "layers": LAYERS, "table": TABLE,
    "table anew": TABLE_ANEW, "an entry": ENTRY, "shape of one": SHAPE_OF_ONE, "an entry alike": ALIKE,
}  # fmt: skip
NOTES = {
    "each owned": EACH_OWNED,
    "a dictionary once": DICTIONARY_ONCE,
    "a tuple once": TUPLE_ONCE,
}


def programs(framework: str) -> dict[str, str]:
    none, tensors = (", None", "ctx.saved_tensors") if framework == "torch" else ("", "ctx.saved_tensor()")
    every = numbered(CASES) | SEVERAL | SHARED_WELL | NOTES | {
        "each": EACH_ITS_OWN, "healthy": HEALTHY, "once": ONCE, "helped": HELPED, "method": EACH_BY_METHOD,
    }  # fmt: skip
    if framework == "torch":
        every["recomputed"] = RECOMPUTED
    for name, text in every.items():
        every[name] = HEAD[framework] + TRAIN + text.replace("TENSORS", tensors).replace(", NONE", none)
    return every


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
@pytest.mark.parametrize("name", SEVERAL)
def test_a_later_call_sets_several_anew(runs: dict[str, Run], name: str) -> None:
    found = runs[name].check_first("silent-overwrite")
    assert found["severity"] == "error" and "computes with the values of another call" in found["message"], found


@each
@pytest.mark.parametrize("name", SHARED_WELL)
def test_several_that_calls_may_share(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", NOTES)
def test_several_of_one_call_are_a_note(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy("silent-overwrite")


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
