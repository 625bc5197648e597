"""A tensor that a backward needs is changed in place before it: Paddle raises. 1 backward call."""

import paddle

paddle.seed(3)
x = paddle.randn([4])
x.stop_gradient = False
y = paddle.tanh(x)
z = y * y  # @needs
y.add_(paddle.ones([4]))  # @changes
z.sum().backward()
