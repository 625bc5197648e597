"""The loss falls, but slowly: the backward of a hand-written activation is wrong. By how much?

    adbg run -b 'SquaredReLU after' examples/wrong_gradient.py

At the stop, behind the node, try

    p grad_inputs[0]
    p grad_outputs[0] * 2 * saved[0].relu()                     what it ought to be
    ! x = saved[0].detach().requires_grad_()
    ! y = x.relu().square(); y.backward(grad_outputs[0])
    p grad_inputs[0] / x.grad                                   the factor, element by element
    set grad_inputs[0] = x.grad                                 go on with the right one

and compare the loss after that with the loss of a plain run.
"""

import torch
from torch import nn


class SquaredReLU(torch.autograd.Function):
    """max(x, 0) squared (So et al. 2021)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu().square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.relu()


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 32), nn.Linear(32, 1)

    def forward(self, x):
        return self.second(SquaredReLU.apply(self.first(x)))


def main():
    torch.manual_seed(0)
    model = Regressor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    inputs = torch.randn(128, 4)
    target = inputs.square().sum(-1, keepdim=True)
    for iteration in range(1, 9):
        loss = nn.functional.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"iteration {iteration}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
