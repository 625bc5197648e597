"""Small kernels: the CPU launches for longer than it computes. `adbg run -e "profile cprofile 10 iterations"` shows
where; with `fused` as argument the optimizer is one kernel."""

from __future__ import annotations

import sys
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 400


class Cell(torch.nn.Module):
    """Two small layers and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.outer = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.outer(torch.tanh(self.inner(x)))) + x


def main(fused: bool) -> None:
    model = torch.nn.Sequential(*(Cell(8) for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    data = torch.randn(4, 8)
    begun = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(data).square().sum()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}, {(time.perf_counter() - begun) / STEPS * 1e6:.0f} us per step")


if __name__ == "__main__":
    main("fused" in sys.argv[1:])
