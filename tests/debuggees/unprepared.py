"""A training that knows nothing of a debugger: 20 iterations, then the same small backward again and again until the
file named as argument exists, then 20 more. The digest is that of the 40 iterations."""

import os
import sys
import time

import torch
from digest import Digest
from torch import nn

torch.manual_seed(19)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batch = torch.randn(16, 8)
result = Digest()


def train():
    for _ in range(20):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        result.add(loss, [p.grad for p in model.parameters()])
        optimizer.step()


train()
print("half", os.getpid(), flush=True)
weight = torch.ones(4, requires_grad=True)
while True:
    weight.grad = None
    (weight * 3).sin().sum().backward()  # @backward
    time.sleep(0.01)
    if os.path.exists(sys.argv[1]):
        break
train()
result.add(weight.grad)
result.close()
