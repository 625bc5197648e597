"""A custom Function whose backward runs a backward of its own, inside another one: a reversible network.

    adbg run -b 'ReversibleBackward' examples/nested_functions.py

At the stop try

    step        into the backward that this node runs: the nodes of its own little graph, depth 1
    where       frame 0 is the node at hand; behind it the nodes that it runs inside of
    next        the next node on this level, over whatever backward it runs
    finish      to the end of the backward at hand, then stop behind the node that ran it
    info backward

A reversible layer (Gomez et al. 2017) keeps no activations: its backward works its input out again from its output and
differentiates that on the spot.
"""

import torch
from torch import nn


class Reversible(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1), of which nothing but the result is kept."""

    @staticmethod
    def forward(ctx, x1, x2, f, g, *parameters):
        with torch.no_grad():
            y1 = x1 + f(x2)
            y2 = x2 + g(y1)
        ctx.save_for_backward(y1, y2)
        ctx.f, ctx.g, ctx.parameters = f, g, parameters
        return y1, y2

    @staticmethod
    def backward(ctx, grad1, grad2):
        y1, y2 = (y.detach() for y in ctx.saved_tensors)
        with torch.no_grad():
            x2 = y2 - ctx.g(y1)
            x1 = y1 - ctx.f(x2)
        with torch.enable_grad():
            x1.requires_grad_(), x2.requires_grad_()
            again1 = x1 + ctx.f(x2)
            again2 = x2 + ctx.g(again1)
            inner = torch.autograd.grad((again1, again2), (x1, x2, *ctx.parameters), (grad1, grad2))
        return inner[0], inner[1], None, None, *inner[2:]


class ReversibleLayer(nn.Module):
    def __init__(self, f, g):
        super().__init__()
        self.f, self.g = f, g

    def forward(self, pair):
        return Reversible.apply(*pair, self.f, self.g, *self.parameters())


class Twice(nn.Module):
    """A reversible pair inside one half of a reversible layer: backward in backward in backward."""

    def __init__(self, width):
        super().__init__()
        self.inner = ReversibleLayer(nn.Linear(width // 2, width // 2), nn.Linear(width // 2, width // 2))

    def forward(self, x):
        return torch.cat(self.inner(x.chunk(2, -1)), -1)


def main():
    torch.manual_seed(0)
    width = 8
    layers = nn.Sequential(
        ReversibleLayer(nn.Sequential(nn.Linear(width, width), nn.Tanh()), Twice(width)),
        ReversibleLayer(nn.Linear(width, width), nn.Sequential(nn.Linear(width, width), nn.Tanh())),
    )
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-2)
    data = torch.randn(32, 2 * width)
    target = data.roll(1, -1)
    for iteration in range(1, 6):
        halves = tuple(half.requires_grad_() for half in data.clone().chunk(2, -1))
        loss = (torch.cat(layers(halves), -1) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"iteration {iteration}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
