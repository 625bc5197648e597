"""A gradient penalty (create_graph), then third order.

Per iteration 1 autograd.grad + 1 backward; at the end 3 more: 9 calls.
"""

import torch
from digest import Digest
from torch import nn

torch.manual_seed(8)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
result = Digest()
for _ in range(3):
    inputs = torch.randn(8, 6, requires_grad=True)
    output = model(inputs).sum()
    (slope,) = torch.autograd.grad(output, inputs, create_graph=True)
    loss = output.square() + (slope.norm(dim=1) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    result.add(loss, slope, model)
    optimizer.step()
x = torch.tensor(0.7, requires_grad=True)
value = x.sin() * x.exp()
for _ in range(3):
    (value,) = torch.autograd.grad(value, x, create_graph=True)
    result.add(value)
result.add(model)
result.close()
