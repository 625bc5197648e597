"""torch.compile with the backend given as argument (default aot_eager): 3 backward calls, graph count printed."""

import sys

import torch
from digest import Digest
from torch import nn

torch.manual_seed(16)
torch.set_num_threads(1)
compiles = []
backend = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 1)

    def forward(self, x):
        return self.down(torch.sin(self.up(x)))


model = Net()
compiled = torch.compile(model, backend=backend)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(8, 6)
result = Digest()
for _ in range(3):
    loss = compiled(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    result.add(loss, model)
    optimizer.step()
counters = torch._dynamo.utils.counters
print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
result.close()
