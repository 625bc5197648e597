"""A small perceptron: 5 steps of Adam. 5 backward calls."""

import torch
from digest import Digest
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs, labels = torch.randn(64, 16), torch.randint(0, 4, (64,))
result = Digest()
for iteration in range(5):
    loss = nn.functional.cross_entropy(model(inputs), labels)  # @forward
    optimizer.zero_grad()
    loss.backward()  # @backward
    result.add(loss, model)
    optimizer.step()
    print(f"iteration {iteration} loss {loss.item():.6f}", flush=True)
result.add(model)
result.close()
