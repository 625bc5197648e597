"""A custom Function that returns a gradient of the wrong shape. Ends with torch's own error, status 1."""

import torch


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum(0)

    @staticmethod
    def backward(ctx, grad):
        return grad.repeat(2)  # @wrong


x = torch.ones(3, 4, requires_grad=True)
Summed.apply(x.exp()).square().sum().backward()  # @backward
