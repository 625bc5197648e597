"""Custom functions on torch that write into what they are given, or keep what they made; and some that may."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
from torch.autograd import Function
torch.manual_seed(3)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), 0.01)
def train(run):
    for _ in range(5):
        loss = run(torch.randn(5, 4)).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""
# By the framework's own function, told to work in place.
RELU = """
class Gate(Function):
    @staticmethod
    def forward(ctx, x, slope):
        kept = F.relu(x, inplace=True)  # CAUSE
        ctx.save_for_backward(kept > 0)
        ctx.slope = slope
        return kept * slope
    @staticmethod
    def backward(ctx, grad):
        positive, = ctx.saved_tensors
        return grad * positive * ctx.slope, None
train(lambda x: net[2](Gate.apply(net[0](x), 0.5)))
"""
# A part of it, and of the second argument.
ROW = """
class Reset(Function):
    @staticmethod
    def forward(ctx, weight, hidden):
        hidden[0] = 0.0  # CAUSE
        out = hidden @ weight.t()
        ctx.save_for_backward(weight, hidden)
        return out
    @staticmethod
    def backward(ctx, grad):
        weight, hidden = ctx.saved_tensors
        return grad.t() @ hidden, grad @ weight
class Model(nn.Module):
    def forward(self, x):
        hidden = torch.tanh(net[0](x)) * 1.0
        return Reset.apply(net[2].weight, hidden)
train(Model())
"""
OUT = """
class Normalise(Function):
    @staticmethod
    def forward(ctx, x):
        size = x.norm(dim=1, keepdim=True) + 1
        torch.div(x, size, out=x)  # CAUSE
        ctx.save_for_backward(size)
        return x * 1
    @staticmethod
    def backward(ctx, grad):
        size, = ctx.saved_tensors
        return grad / size
def run(x):
    h = net[0](x).detach().requires_grad_()
    return Normalise.apply(h * 1.0).sum(1) + net(x).squeeze(1)
train(run)
"""
PAIR = """
class SoftPlus(Function):
    @staticmethod
    def forward(ctx, x):
        e = x.exp()
        result = (1 + e).log()
        ctx.state = (e, result)  # CAUSE
        return result
    @staticmethod
    def backward(ctx, grad):
        e, _ = ctx.state
        return grad * e / (1 + e)
train(lambda x: SoftPlus.apply(net(x)))
"""
SETUP = """
class Sigmoid(Function):
    @staticmethod
    def forward(x):
        return 1 / (1 + (-x).exp())
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.output = output  # CAUSE
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.output * (1 - ctx.output)
class Model(nn.Module):
    def forward(self, x):
        return Sigmoid.apply(net(x))
train(Model())
"""
DICTIONARY = """
class Attention(Function):
    @staticmethod
    def forward(ctx, scores):
        weights = scores.softmax(-1)
        ctx.cache = {}
        ctx.cache["weights"] = weights  # CAUSE
        return weights
    @staticmethod
    def backward(ctx, grad):
        weights = ctx.cache["weights"]
        return weights * (grad - (grad * weights).sum(-1, keepdim=True))
train(lambda x: Attention.apply(net[0](x)))
"""
# Memory that the calls share: the second one writes over what the first one's backward needs.
ARENA = """
class Arena:
    def __init__(self):
        self.block = torch.zeros(4096)
    def take(self, shape):
        return self.block[: shape.numel()].view(shape)
arena = Arena()
class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        gate = arena.take(x.shape)
        torch.sigmoid(x, out=gate)
        ctx.save_for_backward(x)
        ctx.gate = gate  # CAUSE
        return x * gate
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        s = ctx.gate
        return grad * (s + x * s * (1 - s))
train(lambda x: net[2](Swish.apply(torch.tanh(Swish.apply(net[0](x))))))
"""
# A mask that the layer fills again for each view of the batch.
MASK = """
class Drop(Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.mask, ctx.keep = mask, 0.5  # CAUSE
        return x * mask / 0.5
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask / ctx.keep, None
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(5, 8))
    def forward(self, x):
        self.mask.bernoulli_(0.5)
        return Drop.apply(x, self.mask)
drop = Layer()
train(lambda x: net[2](drop(net[0](x)) + drop(net[0](-x))))
"""
HEALTHY = """
class AddOne(Function):
    # says that it writes
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.add_(1)
    @staticmethod
    def backward(ctx, grad):
        return grad
class Norm(Function):
    # running statistics, and a buffer of its own
    @staticmethod
    def forward(ctx, x, mean):
        mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        work = torch.empty_like(x)
        work.copy_(x).sub_(mean)
        ctx.shape = x.shape
        return work.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad, None
class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.mask = y > 1
        ctx.size = {"n": y.numel()}
        return y
    @staticmethod
    def backward(ctx, grad):
        y, = ctx.saved_tensors
        return grad * y
# parts of one block: none is written twice before its backward; its version moves with every part
block, used = torch.zeros(1024), [0]
class Gate(Function):
    @staticmethod
    def forward(ctx, x, mean, seen):
        gate = block[used[0] : used[0] + x.numel()].view(x.shape)
        used[0] += x.numel()
        torch.sigmoid(x, out=gate)
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)  # a statistic, kept for the mode that backward may be in
        ctx.gate, ctx.mean, ctx.seen, ctx.training = gate, mean, seen, True
        return gate.clone()
    @staticmethod
    def backward(ctx, grad):
        ctx.seen += grad.abs().mean(0)  # a sum over all calls
        return grad * ctx.gate * (1 - ctx.gate) if ctx.training else grad * ctx.mean, None, None
gate_mean, seen = torch.zeros(8), torch.zeros(8)
def twice(x):
    used[0] = 0
    return net[2](Gate.apply(torch.tanh(Gate.apply(net[0](x), gate_mean, seen)), gate_mean, seen))
train(twice)
mean = torch.zeros(8)
train(lambda x: net[2](Exp.apply(Norm.apply(AddOne.apply(net[0](x) * 1.0), mean).tanh())))
with torch.no_grad():
    print(Exp.apply(torch.ones(2)).tolist(), mean.norm().item())
"""
# Random numbers of NumPy's, drawn into an array that all calls share.
SCRATCH = """
import numpy as np
drawn, rng = np.empty((5, 8), "float32"), np.random.default_rng(0)
class Drop(Function):
    @staticmethod
    def forward(ctx, x, p):
        rng.random(out=drawn, dtype="float32")
        ctx.drawn, ctx.p = drawn, p  # CAUSE
        return x * torch.from_numpy((drawn >= p).astype("float32"))
    @staticmethod
    def backward(ctx, grad):
        return grad * torch.from_numpy((ctx.drawn >= ctx.p).astype("float32")), None
train(lambda x: net[2](Drop.apply(torch.tanh(Drop.apply(net[0](x), 0.5)), 0.5)))
"""
DRAWN = SCRATCH.replace("ctx.drawn, ctx.p = drawn, p  # CAUSE", "ctx.drawn, ctx.p = drawn.copy(), p")
# A level of a quantizer: some of 72,000 numbers jump with each change of it, so that no finite difference tells.
LEVEL = """
class Clip(Function):
    @staticmethod
    def forward(ctx, x, level):
        ctx.save_for_backward(x, level)
        return torch.round(torch.minimum(x.clamp_min(0), level) / level * 15) * level / 15
    @staticmethod
    def backward(ctx, grad):
        x, level = ctx.saved_tensors
        return grad * ((x > 0) & (x < level)), None  # CAUSE
class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        return Clip.apply(x, self.level)
clip = Quantized()
opt.add_param_group({"params": clip.parameters(), "lr": 0.1})
for _ in range(5):
    loss = net[2](clip(net[0](torch.randn(9000, 4)))).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""
# What a forward fills before it saves it is written by its own counter: backward would see a later write.
FILLED = """
class Most(Function):
    @staticmethod
    def forward(ctx, x, rows):
        most = x.new_full((2, x.shape[1]), -9.0)
        place = rows.unsqueeze(1).expand_as(x)
        most.scatter_reduce_(0, place, x, reduce="amax")
        best = torch.full(most.shape, -1)
        ours = torch.where(x == most[rows], torch.arange(len(x)).unsqueeze(1).expand_as(x), -1)
        best.scatter_reduce_(0, place, ours, reduce="amax")
        ctx.save_for_backward(best)
        ctx.shape = x.shape
        return most.clone()
    @staticmethod
    def backward(ctx, grad):
        best, = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter(0, best, grad), None
rows = torch.tensor([0, 1, 0, 1, 0])
def of_both(x):
    h = net[0](x)
    free = [net[0].weight * 2 for _ in range(40)]  # as many bytes as `best` has
    del free
    return net[2](Most.apply(torch.tanh(h), rows))
train(of_both)
"""
FIXED = LEVEL.replace(
    "self.level = nn.Parameter(torch.tensor(0.5))", 'self.register_buffer("level", torch.tensor(0.5))'
)
FIXED = FIXED.replace("opt.add_param_group", "0 and opt.add_param_group")
# One that gets its gradient elsewhere.
SHARED_LEVEL = LEVEL.replace(".pow(2).mean()", ".pow(2).mean() + clip.level")


CASES: list[tuple[str, str]] = [
    ("function-input-overwritten", RELU), ("function-input-overwritten", ROW),
    ("function-input-overwritten", OUT), ("function-keeps-output", PAIR), ("function-keeps-output", SETUP),
    ("function-keeps-output", DICTIONARY), ("silent-overwrite", ARENA), ("silent-overwrite", MASK),
    ("silent-overwrite", SCRATCH), ("missing-gradient", LEVEL),
]  # fmt: skip

MAY = {"healthy": HEALTHY, "drawn": DRAWN, "filled": FILLED, "fixed": FIXED, "shared": SHARED_LEVEL}
PROGRAMS = numbered(CASES) | MAY


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


@pytest.mark.parametrize("name", MAY)
def test_functions_that_may_write_and_keep(runs: dict[str, Run], name: str) -> None:
    """The level of "shared" gets no gradient of the function, though its result depends on it: a note asks."""
    runs[name].check_healthy(*(["missing-gradient"] if name == "shared" else []))
