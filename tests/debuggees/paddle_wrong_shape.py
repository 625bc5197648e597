"""A PyLayer hands back two gradients where its forward took one tensor: Paddle raises. 1 backward call."""

import paddle
from paddle.autograd import PyLayer

paddle.seed(4)


class Wrong(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad, grad  # @wrong


x = paddle.randn([3])
x.stop_gradient = False
Wrong.apply(x).sum().backward()
