"""What findings say beside kind and line: which module, which name, which numbers. On PyTorch, in one process."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each

pytest.importorskip("torch")

# One line runs all layers. The first bad number is made by the third, in an iteration that is not looked at closely.
SHARED_LINE = """
import torch, torch.nn as nn
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))
    def forward(self, x):
        return torch.log(x * self.weight)  # CAUSE
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Scaled() for _ in range(4))
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x.abs() + 1.5)
            if not torch.isfinite(x).all():
                print(f"layers.{number}")
        return x
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(12):
    if step == 10:
        net.layers[2].weight.data[1] = 0
    loss = net(torch.rand(8, 4) + 1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

PROGRAMS = {"shared line": SHARED_LINE}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each("torch", tmp_path_factory.mktemp("programs"), PROGRAMS)


def test_layers_that_share_a_line_are_told_apart(runs: dict[str, Run]) -> None:
    run = runs["shared line"]
    first = run.first("nonfinite")
    assert first["node"]["module"] == run.plain.split()[0] == "layers.2"
    assert first["iteration"] == 11
