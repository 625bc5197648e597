"""Mixed precision on the CPU with a GradScaler whose scale overflows on purpose in the second of 4 iterations.

4 backward calls.
"""

import torch
from digest import Digest
from torch import nn

torch.manual_seed(13)
torch.set_num_threads(1)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
result = Digest()
for iteration in range(4):
    inputs = torch.randn(5, 6) * (1e38 if iteration == 1 else 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(inputs).float().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    result.add(loss, model)
    scaler.step(optimizer)
    scaler.update()
    result.add(scaler.get_scale())
result.add(model)
result.close()
