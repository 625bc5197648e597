"""Custom Functions whose backward runs a backward of its own, to the depth given as argument (default 3).

Past a depth of 60 torch goes on in another thread. Backward calls: 1 at top level and one per level below it.
"""

import sys
import time

import torch
from digest import Digest

torch.manual_seed(7)
torch.set_num_threads(1)
DEPTH = int(sys.argv[1]) if len(sys.argv) > 1 else 3


class Level(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, below):
        ctx.save_for_backward(x)
        ctx.below = below
        with torch.no_grad():
            return x.sin() * 1.01

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            value = Level.apply(inner, ctx.below - 1) if ctx.below else inner.sin() * 1.01
        value.backward(grad)  # @inner_backward
        return inner.grad, None


x = torch.randn(5, requires_grad=True)
(Level.apply(x, DEPTH - 1) * 2).sum().backward()  # @outer_backward
result = Digest()
result.add(x.grad)
result.close()
time.sleep(0.3)  # torch's extra threads still let go of what they hold; plain Python aborts when it ends before that
