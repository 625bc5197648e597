"""Every second backward fails in a PyLayer and the loop goes on, as loops with bad batches do. 3 backward calls."""

import paddle
from paddle.autograd import PyLayer
from paddle_digest import Digest

paddle.seed(11)


class Picky(PyLayer):
    refuse = False

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        if Picky.refuse:
            raise ValueError("bad batch")  # @refused
        return grad * 1


x = paddle.randn([4])
x.stop_gradient = False
result = Digest()
for iteration in range(3):
    Picky.refuse = iteration == 1
    x.clear_grad()
    try:
        (Picky.apply(paddle.tanh(x)) * 3).sum().backward()
    except Exception as error:
        print(type(error).__name__, "bad batch" in str(error))
    result.add(x.grad, paddle.is_grad_enabled())
result.close()
