"""A custom Function whose backward raises in the second iteration.

The script catches it and goes on: 3 backward calls.
"""

import torch
from digest import Digest

torch.manual_seed(0)
torch.set_num_threads(1)


class Fussy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, allowed):
        ctx.allowed = allowed
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        if not ctx.allowed:
            raise ZeroDivisionError("no gradient today")  # @raises
        return grad * 2, None


x = torch.ones(3, requires_grad=True)
caught = []
for iteration in range(3):
    try:
        Fussy.apply(x.exp(), iteration != 1).sum().backward()
    except ZeroDivisionError as error:
        caught.append(str(error))
result = Digest()
result.add(x.grad, caught)
result.close()
