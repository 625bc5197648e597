"""A variable needed for the gradient "has been modified by an inplace operation": which line made it?

    adbg run examples/inplace_error.py

The program stops when backward fails, without any breakpoint and without anomaly mode having been on. Then try

    where        the forward line of the node that cannot run
    info node    its saved tensors: the one that was changed is marked, with both version numbers
    p saved      the changed values themselves
    continue     the exception goes on as it would have without adbg
"""

import torch
from torch import nn


class Normaliser(nn.Module):
    """Running mean and scale, updated while training, as many a reinforcement learning repository has it."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        centred = (x - self.mean) * self.scale
        gate = torch.sigmoid(centred)
        value = centred * gate
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
            gate.clamp_(0.05, 0.95)  # "only for the statistics below"
        return value, gate.mean()


def main():
    torch.manual_seed(0)
    normalise, policy = Normaliser(6), nn.Linear(6, 2)
    optimizer = torch.optim.Adam([*normalise.parameters(), *policy.parameters()], lr=1e-3)
    for iteration in range(1, 4):
        observations = torch.randn(16, 6) + 3
        value, openness = normalise(observations)
        loss = policy(value).square().mean() + 0.01 * openness
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"iteration {iteration}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
