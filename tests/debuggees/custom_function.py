"""A custom autograd.Function with a scalar argument, a saved tensor and an output that gets no gradient.

3 backward calls.
"""

import torch
from digest import Digest
from torch import nn

torch.manual_seed(6)
torch.set_num_threads(1)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        gate = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, gate)
        ctx.beta = beta
        return x * gate, gate

    @staticmethod
    def backward(ctx, grad_value, grad_gate):
        x, gate = ctx.saved_tensors
        slope = ctx.beta * gate * (1 - gate)
        return grad_value * (gate + x * slope) + grad_gate * slope, None  # @custom_backward


model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(10, 8)
result = Digest()
for _ in range(3):
    value, _ = Swish.apply(model[0](inputs), 1.5)
    loss = model[1](value).square().mean()
    optimizer.zero_grad()
    loss.backward()
    result.add(loss, model)
    optimizer.step()
result.add(model)
result.close()
