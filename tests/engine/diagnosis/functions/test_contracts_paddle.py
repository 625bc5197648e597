"""PyLayers that break their framework's rules, or whose backward is not the derivative: shapes beside those of
``test_functions_paddle``."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, kind_of, numbered

HEAD = """
import paddle, paddle.nn as nn, paddle.nn.functional as F
from paddle.autograd import PyLayer
paddle.seed(3)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = paddle.optimizer.SGD(0.01, parameters=net.parameters())
def train(run):
    for _ in range(5):
        loss = run(paddle.randn([5, 4])).pow(2).mean()
        opt.clear_grad(); loss.backward(); opt.step()
"""
RELU = """
class Gate(PyLayer):
    @staticmethod
    def forward(ctx, x, slope):
        kept = F.relu_(x)  # CAUSE
        ctx.save_for_backward(kept > 0)
        ctx.slope = slope
        return kept * slope
    @staticmethod
    def backward(ctx, grad):
        positive, = ctx.saved_tensor()
        return grad * positive.astype(grad.dtype) * ctx.slope
train(lambda x: net[2](Gate.apply(net[0](x), 0.5)))
"""
ROW = """
class Reset(PyLayer):
    @staticmethod
    def forward(ctx, weight, hidden):
        hidden[0] = 0.0  # CAUSE
        out = hidden @ weight
        ctx.save_for_backward(weight, hidden)
        return out
    @staticmethod
    def backward(ctx, grad):
        weight, hidden = ctx.saved_tensor()
        return hidden.T @ grad, grad @ weight.T
class Model(nn.Layer):
    def forward(self, x):
        hidden = paddle.tanh(net[0](x)) * 1.0
        return Reset.apply(net[2].weight, hidden)
train(Model())
"""
SCALED = """
class Normalise(PyLayer):
    @staticmethod
    def forward(ctx, x):
        size = x.norm(axis=1, keepdim=True) + 1
        x.scale_(0.5)  # CAUSE
        ctx.save_for_backward(size)
        return x / size
    @staticmethod
    def backward(ctx, grad):
        size, = ctx.saved_tensor()
        return 0.5 * grad / size
def run(x):
    return Normalise.apply(net[0](x) * 1.0).sum(1)
train(run)
"""
ONE_INPUT = """
class Bilinear(PyLayer):
    @staticmethod
    def forward(ctx, x, w, bias):
        ctx.save_for_backward(x, w)
        return paddle.matmul(x, w) + bias
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensor()
        gx = paddle.matmul(grad, w, transpose_y=True)
        gw = paddle.matmul(x, grad, transpose_x=True)
        gb = grad.mean(0)  # CAUSE
        return gx, gw, gb
w, b = paddle.create_parameter([8, 2], "float32"), paddle.create_parameter([2], "float32", is_bias=True)
train(lambda x: Bilinear.apply(net[1](net[0](x)), w, b))
"""
UNWRITTEN_ROWS = """
class Pick(PyLayer):
    @staticmethod
    def forward(ctx, table, rows):
        ctx.rows, ctx.shape = rows, table.shape
        return paddle.gather(table, rows)
    @staticmethod
    def backward(ctx, grad):
        gradient = paddle.empty(ctx.shape, dtype=grad.dtype)  # CAUSE
        gradient[1:4] = grad
        return gradient, None
table = paddle.create_parameter([6, 4], "float32")
train(lambda x: net(Pick.apply(table, paddle.to_tensor([1, 2, 3]))))
"""
# Of a table that is large as tables are, the rows of tokens that no batch picks; and of a small one.
UNPICKED = """
class Pick(PyLayer):
    @staticmethod
    def forward(ctx, table, tokens):
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return F.embedding(tokens, table)
    @staticmethod
    def backward(ctx, grad):
        tokens, = ctx.saved_tensor()
        found = grad.new_empty(ctx.shape)  # CAUSE
        seen = set()
        for place, token in enumerate(tokens.tolist()):
            found[token] = found[token] + grad[place] if token in seen else grad[place]
            seen.update([token])
        return found
table = paddle.create_parameter([20000, 16], "float32")
train(lambda x: net(Pick.apply(table, paddle.to_tensor([1, 5, 5, 7]))[:, :4]))
"""
UNPICKED_SMALL = """
from paddle import empty
class Pick(PyLayer):
    @staticmethod
    def forward(ctx, table, tokens):
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return F.embedding(tokens, table)
    @staticmethod
    def backward(ctx, grad):
        tokens, = ctx.saved_tensor()
        found = empty(ctx.shape, dtype=grad.dtype)  # CAUSE
        for place, token in enumerate(tokens.tolist()):
            found[token] = grad[place]
        return found
table = paddle.create_parameter([40, 4], "float32")
train(lambda x: net(Pick.apply(table, paddle.to_tensor([1, 5, 7]))))
"""
UNWRITTEN_LAST = """
class Shift(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return F.pad(x, [1, 0], data_format="NCL") if x.ndim == 3 else paddle.concat([x[:, :1] * 0, x[:, :-1]], 1)
    @staticmethod
    def backward(ctx, grad):
        back = paddle.empty_like(grad)  # CAUSE
        back[:, :-1] = grad[:, 1:]
        return back
class Model(nn.Layer):
    def forward(self, x):
        return net[2](Shift.apply(net[0](x)))
train(Model())
"""
NONE_FIRST = """
class Scale(PyLayer):
    @staticmethod
    def forward(ctx, factor, x):
        ctx.save_for_backward(factor, x)
        return factor * x
    @staticmethod
    def backward(ctx, grad):
        factor, x = ctx.saved_tensor()
        return None, grad * factor  # CAUSE
class Scaled(nn.Layer):
    def __init__(self):
        super().__init__()
        self.factor = self.create_parameter([1], default_initializer=nn.initializer.Constant(2.0))
    def forward(self, x):
        return Scale.apply(self.factor, net(x))
train(Scaled())
"""
NONE_SOMETIMES = """
class Mix(PyLayer):
    @staticmethod
    def forward(ctx, a, b, share):
        ctx.share = share
        return a * share + b * (1 - share)
    @staticmethod
    def backward(ctx, grad):
        gb = grad * (1 - ctx.share) if ctx.share > 0.5 else None  # CAUSE
        return grad * ctx.share, gb
def run(x):
    h = net[0](x)
    return Mix.apply(h.tanh(), h.sin(), 0.25)
train(run)
"""
COUNT = """
class Affine(PyLayer):
    @staticmethod
    def forward(ctx, x, scale, shift):
        ctx.save_for_backward(x, scale)
        return x * scale + shift
    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensor()
        return grad * scale, (grad * x).sum()  # CAUSE
scale, shift = paddle.create_parameter([1], "float32"), paddle.create_parameter([1], "float32")
train(lambda x: Affine.apply(net(x), scale, shift))
"""
NUMBER = """
class Mean(PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.size = x.shape[0]
        return x.mean(0)
    @staticmethod
    def backward(ctx, grad):
        return float(grad.sum()) / ctx.size  # CAUSE
class Model(nn.Layer):
    def forward(self, x):
        return Mean.apply(net(x))
train(Model())
"""
NONE_IN_THE_MIDDLE = """
class Gated(PyLayer):
    @staticmethod
    def forward(ctx, x, gate, bias):
        ctx.save_for_backward(x, gate)
        return x * F.sigmoid(gate) + bias
    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensor()
        gx = grad * F.sigmoid(gate)
        return gx, None, grad.sum(0)  # CAUSE
class Layer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.gate, self.bias = self.create_parameter([8]), self.create_parameter([8], is_bias=True)
    def forward(self, x):
        return net[2](Gated.apply(net[0](x), self.gate, self.bias))
train(Layer())
"""
TOO_MANY = """
class Clip(PyLayer):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward((x > low) & (x < high))
        return x.clip(low, high)
    @staticmethod
    def backward(ctx, grad):
        inside, = ctx.saved_tensor()
        return grad * inside.astype(grad.dtype), None, None  # CAUSE
train(lambda x: Clip.apply(net(x), -1.0, 1.0))
"""
FROZEN = """
# None for what takes no gradient here, and a gradient for each tensor among numbers.
class Mix(PyLayer):
    @staticmethod
    def forward(ctx, a, share, b):
        ctx.share, ctx.wanted = share, not b.stop_gradient
        return a * share + b * (1 - share)
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.share, grad * (1 - ctx.share) if ctx.wanted else None
class Residual(nn.Layer):
    def __init__(self):
        super().__init__()
        self.table = paddle.ones([5, 8])
    def forward(self, x):
        hidden = net[0](x)
        mixed = Mix.apply(Mix.apply(hidden, 0.5, hidden.detach()), 0.9, self.table)
        return net[2](mixed + Mix.apply(hidden, 0.1, hidden))
train(Residual())
# Two results, of which one is used.
class Split(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x[:, :1] * 1.0, x[:, 1:] * 1.0
    @staticmethod
    def backward(ctx, first, rest):
        return paddle.concat([first, rest], 1)
train(lambda x: Split.apply(net[1](net[0](x)))[1].sum(1))
"""
# Memory that the calls share: the second one writes over what the first one's backward needs.
SHARED = """
work = paddle.zeros([5, 8])
class Swish(PyLayer):
    @staticmethod
    def forward(ctx, x):
        paddle.assign(F.sigmoid(x), work)
        ctx.save_for_backward(x)
        ctx.gate = work  # CAUSE
        return x * work
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensor()
        s = ctx.gate
        return grad * (s + x * s * (1 - s))
train(lambda x: net[2](Swish.apply(paddle.tanh(Swish.apply(net[0](x))))))
"""
HEALTHY = """
class AddOne(PyLayer):
    # gives back what it wrote into
    @staticmethod
    def forward(ctx, x):
        x.add_(paddle.ones([1]))
        return x
    @staticmethod
    def backward(ctx, grad):
        return grad
class Norm(PyLayer):
    # running statistics
    @staticmethod
    def forward(ctx, x, mean):
        mean.set_value(0.9 * mean + 0.1 * x.mean(0))
        return x - mean
    @staticmethod
    def backward(ctx, grad):
        return grad
class Scale(PyLayer):
    # kept as attributes: what is its own, its result, and what backward itself writes to
    @staticmethod
    def forward(ctx, x, seen):
        y = x * F.sigmoid(x)
        ctx.gate, ctx.result, ctx.seen = F.sigmoid(x), y, seen
        return y
    @staticmethod
    def backward(ctx, grad):
        ctx.seen.add_(grad.abs().mean(0))
        return grad * (ctx.gate + ctx.result * (1 - ctx.gate))
seen = paddle.zeros([8])
train(lambda x: net[2](Scale.apply(Scale.apply(net[0](x), seen), seen)))
class Exp(PyLayer):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.mask = y > 1
        ctx.size = {"n": y.size}
        return y
    @staticmethod
    def backward(ctx, grad):
        y, = ctx.saved_tensor()
        return grad * y
class Tanh(PyLayer):
    # keeps what it gives back, which on Paddle keeps nothing alive
    @staticmethod
    def forward(ctx, x):
        ctx.result = x.tanh()
        return ctx.result
    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.result * ctx.result)
class Pick(PyLayer):
    # None for an index, and fresh memory that is written to
    @staticmethod
    def forward(ctx, table, rows):
        ctx.rows, ctx.shape = rows, table.shape
        return paddle.gather(table, rows)
    @staticmethod
    def backward(ctx, grad):
        back = paddle.empty(ctx.shape, dtype=grad.dtype)
        back[:] = 0.0
        return paddle.scatter(back, ctx.rows, grad, overwrite=False), None
mean = paddle.zeros([8])
table = paddle.create_parameter([6, 4], "float32")
opt = paddle.optimizer.SGD(0.01, parameters=[*net.parameters(), table])
def run(x):
    h = Norm.apply(AddOne.apply(net[0](x) * 1.0), mean)
    return net[2](Exp.apply(Tanh.apply(h))) + net(Pick.apply(table, paddle.to_tensor([1, 2, 1, 0, 5])))
train(run)
with paddle.no_grad():
    print(Exp.apply(paddle.ones([2])).tolist(), float(mean.norm()))
"""
# Random numbers of NumPy's, drawn into an array that all calls share.
SCRATCH = """
import numpy as np
drawn, rng = np.empty((5, 8), "float32"), np.random.default_rng(0)
class Drop(PyLayer):
    @staticmethod
    def forward(ctx, x, p):
        rng.random(out=drawn, dtype="float32")
        ctx.drawn, ctx.p = drawn, p  # CAUSE
        return x * paddle.to_tensor((drawn >= p).astype("float32"))
    @staticmethod
    def backward(ctx, grad):
        return grad * paddle.to_tensor((ctx.drawn >= ctx.p).astype("float32"))
train(lambda x: net[2](Drop.apply(paddle.tanh(Drop.apply(net[0](x), 0.5)), 0.5)))
"""
DRAWN = SCRATCH.replace("ctx.drawn, ctx.p = drawn, p  # CAUSE", "ctx.drawn, ctx.p = drawn.copy(), p")


CASES: list[tuple[str, str]] = [
    ("function-input-overwritten", RELU), ("function-input-overwritten", ROW),
    ("function-input-overwritten", SCALED), ("wrong-derivative", ONE_INPUT), ("uninitialised", UNWRITTEN_ROWS),
    ("uninitialised", UNWRITTEN_LAST), ("missing-gradient", NONE_FIRST), ("missing-gradient", NONE_SOMETIMES),
    ("function-contract", COUNT), ("function-contract", NUMBER), ("missing-gradient", NONE_IN_THE_MIDDLE),
    ("function-contract", TOO_MANY), ("uninitialised", UNPICKED), ("uninitialised", UNPICKED_SMALL),
    ("silent-overwrite", SHARED), ("silent-overwrite", SCRATCH),
]  # fmt: skip

PROGRAMS = numbered(CASES) | {"healthy": HEALTHY, "frozen": FROZEN, "drawn": DRAWN}


@pytest.mark.parametrize("name", numbered(CASES))
def test_the_line_is_named(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_functions_that_may_write_and_keep(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
    runs["drawn"].check_healthy()


def test_functions_that_may_give_none(runs: dict[str, Run]) -> None:
    runs["frozen"].check_healthy()
