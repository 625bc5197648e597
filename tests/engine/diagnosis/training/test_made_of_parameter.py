"""A Parameter of which the module keeps only what was made of it, so that no optimizer gets it."""

from __future__ import annotations

from pathlib import Path

from support.diagnosing_many import diagnose_each
from support.frameworks import only

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 8), torch.randn(16, 1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        MADE
        self.out = nn.Linear(8, 1)
    def forward(self, x):
        return self.out(x + self.place)
net = Net()
opt = torch.optim.SGD(net.parameters(), 0.05)
for step in range(12):
    loss = (net(x) - y).square().mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
print("registered", [name for name, _ in net.named_parameters()])
"""
MADE = {
    "unsqueeze": "self.place = nn.Parameter(torch.randn(8) * 0.02).unsqueeze(0)  # CAUSE",
    "two operators": "self.place = (nn.Parameter(torch.ones(8)) * 0.1).reshape(1, 8)  # CAUSE",
    "right": "self.place = nn.Parameter((torch.randn(8) * 0.02).unsqueeze(0))",
}


@only("torch", "Paddle's graph does not keep the parameter: nothing holds it, and no gradient of it is left to be seen")
def test_the_line_that_keeps_what_was_made(tmp_path: Path) -> None:
    runs = diagnose_each("torch", tmp_path, {key: PROGRAM.replace("MADE", line) for key, line in MADE.items()})
    for key, run in runs.items():
        if key == "right":
            assert not run.above_notes() and "'place'" in run.output, run
            continue
        found = run.check_first("not-optimized")
        assert "Net.place is what was made of the parameter there" in found["message"], found
        assert "'place'" not in run.output, "the framework's own list of parameters"
