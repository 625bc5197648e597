"""PyLayers whose backward runs a backward of its own, to the depth given as argument (default 3).

2 iterations, each with 1 backward at top level and one per level below it.
"""

import sys

import paddle
from paddle.autograd import PyLayer
from paddle_digest import Digest

paddle.seed(7)
DEPTH = int(sys.argv[1]) if len(sys.argv) > 1 else 3


class Level(PyLayer):
    @staticmethod
    def forward(ctx, x, below):
        ctx.save_for_backward(x)
        ctx.below = below
        return paddle.sin(x) * 1.01

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensor()
        inner = x.detach()
        inner.stop_gradient = False
        with paddle.enable_grad():
            value = Level.apply(inner, ctx.below - 1) if ctx.below else paddle.sin(inner) * 1.01
        paddle.autograd.backward([value], [grad])  # @inner_backward
        return inner.grad


x = paddle.randn([5])
x.stop_gradient = False
result = Digest()
for _ in range(2):
    x.clear_grad()
    y = paddle.tanh(x * 3).exp() + x
    (Level.apply(y, DEPTH - 1) * 2).tanh().square().sum().backward()  # @outer_backward
    result.add(x.grad)
result.close()
