"""LBFGS calls the closure, and so backward, as often as its line search wants; prints how often that was."""

import torch
from digest import Digest
from torch import nn

torch.manual_seed(12)
torch.set_num_threads(1)
model = nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe")
inputs, target = torch.randn(20, 3), torch.randn(20, 1)
calls = 0


def closure():
    global calls
    calls += 1
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), target)
    loss.backward()
    return loss


result = Digest()
for _ in range(2):
    result.add(optimizer.step(closure), model)
print("BACKWARDS", calls)
result.close()
