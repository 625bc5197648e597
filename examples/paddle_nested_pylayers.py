"""Nested PyLayers on PaddlePaddle: the backward of one runs a whole backward of its own, three levels deep.

A small transformer block trains on random data. Its feed-forward part is checkpointed by hand: `Checkpoint` is a
PyLayer that throws the activations away and computes them again in its backward, where it calls
`paddle.autograd.backward`. Inside it, `SwiGLU` does the same with its own gate, and `ClippedExp` has a hand-written
gradient.

Try, after `adbg run -b 'GradNodePyLayer_*' examples/paddle_nested_pylayers.py`:
    vlog 4                       Paddle's own log from here on, folded by PyLayer
    step                         into the backward of the PyLayer at hand; `finish` leads out of it
    where                        what the node is nested in, and the lines that made it
    p norm(grad_outputs[0])
    set grad_outputs[0] = grad_outputs[0] * 0.5
    tbreak ClippedExp            the innermost one
    tbreak param:ffn.*           where the parameters' gradients arrive
    continue
"""

from __future__ import annotations

import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F


class ClippedExp(PyLayer):
    """exp(x) for x up to 4, with the gradient of the unclipped function (so that a large x still learns)."""

    @staticmethod
    def forward(ctx, x):
        y = paddle.exp(paddle.clip(x, max=4.0))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensor()
        return dy * y


class SwiGLU(PyLayer):
    """a * a / (1 + exp(-a)) * b, computed again in backward instead of being kept."""

    @staticmethod
    def formula(a, b):
        return a / (1.0 + ClippedExp.apply(-a)) * b

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return SwiGLU.formula(a, b)

    @staticmethod
    def backward(ctx, dy):
        a, b = (_leaf(tensor) for tensor in ctx.saved_tensor())
        with paddle.enable_grad():
            y = SwiGLU.formula(a, b)
        paddle.autograd.backward([y], [dy])  # a backward inside a backward
        return a.grad, b.grad


class Checkpoint(PyLayer):
    """Runs `layer` without keeping its activations, and once more in backward."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        with paddle.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, dy):
        (saved,) = ctx.saved_tensor()
        x = _leaf(saved)
        with paddle.enable_grad():
            y = ctx.layer(x)
        paddle.autograd.backward([y], [dy])  # the layer's parameters get their gradients here
        return x.grad


def _leaf(tensor):
    leaf = tensor.detach()
    leaf.stop_gradient = False
    return leaf


class FeedForward(nn.Layer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(SwiGLU.apply(self.gate(x), self.up(x)))


class Block(nn.Layer):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiHeadAttention(width, num_heads=2)
        self.ffn = FeedForward(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        x = x + Checkpoint.apply(x, self.ffn)
        return self.head(x.mean(axis=1))


def main() -> None:
    paddle.seed(1)
    model = Block()
    optimizer = paddle.optimizer.AdamW(learning_rate=3e-3, parameters=model.parameters())
    x, target = paddle.randn([8, 6, 16]), paddle.randint(0, 4, [8])
    for iteration in range(4):
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        print(f"iteration {iteration}: loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
