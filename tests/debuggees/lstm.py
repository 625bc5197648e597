"""An LSTM cell unrolled by hand over 12 steps, weights shared by all of them: 3 optimiser steps. 3 backward calls."""

import torch
from digest import Digest
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)
cell, readout = nn.LSTMCell(6, 10), nn.Linear(10, 1)
model = nn.ModuleList([cell, readout])
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
sequence, target = torch.randn(12, 4, 6), torch.randn(12, 4, 1)
result = Digest()
for _ in range(3):
    hidden = memory = torch.zeros(4, 10)
    loss = torch.zeros(())
    for now, wanted in zip(sequence, target):
        hidden, memory = cell(now, (hidden, memory))
        loss = loss + nn.functional.mse_loss(readout(hidden), wanted)
    optimizer.zero_grad()
    loss.backward()
    result.add(loss, model)
    optimizer.step()
result.add(model)
result.close()
