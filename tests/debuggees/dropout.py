"""Dropout, noise and shuffling drawn from seeded generators.

One number drawn by adbg would change it all. 4 backward calls.
"""

import random

import torch
from digest import Digest
from torch import nn

torch.manual_seed(4)
random.seed(4)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(12, 24), nn.Dropout(0.5), nn.GELU(), nn.AlphaDropout(0.2), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs, labels = torch.randn(32, 12), torch.randint(0, 3, (32,))
result = Digest()
order = list(range(32))
for _ in range(4):
    random.shuffle(order)
    chosen = inputs[order[:16]] + 0.1 * torch.randn(16, 12)
    loss = nn.functional.cross_entropy(model(chosen), labels[order[:16]])
    optimizer.zero_grad()
    loss.backward()
    result.add(loss, model)
    optimizer.step()
result.add(model, random.getstate())
result.close()
