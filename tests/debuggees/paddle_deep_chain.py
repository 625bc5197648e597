"""As many multiplications in a row as the argument says, on Paddle: a graph that is deep and nothing else.

2 backward calls.
"""

import sys

import paddle
from paddle_digest import Digest

paddle.seed(9)
result = Digest()
for _ in range(2):
    x = paddle.ones([2])
    x.stop_gradient = False
    y = x
    factor = paddle.to_tensor([1.0, -1.0])
    for _ in range(int(sys.argv[1])):
        y = y * factor
    y.sum().backward()
    result.add(x.grad)
    del y
result.close()
