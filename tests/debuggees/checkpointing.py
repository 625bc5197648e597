"""Both kinds of torch.utils.checkpoint, with dropout inside, so that a recomputation too many or too few shows.

Per iteration: one backward for the non-reentrant kind; for the reentrant kind one, and one more inside each of its two
checkpoints. 3 iterations: 6 backward calls at top level, 6 nested ones. ``recomputed`` counts runs of the block's
forward.
"""

import torch
from digest import Digest
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(5)
torch.set_num_threads(1)


class Block(nn.Module):
    runs = 0

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        Block.runs += 1
        return x + self.second(nn.functional.dropout(torch.relu(self.first(x)), 0.3))


model = nn.ModuleList([Block(), Block(), nn.Linear(8, 1)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(16, 8)
result = Digest()
for _ in range(3):
    for reentrant in (False, True):
        x = inputs.clone().requires_grad_()
        for block in model[:2]:
            x = checkpoint(block, x, use_reentrant=reentrant)
        loss = model[2](x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        result.add(loss, model, Block.runs)
        optimizer.step()
print("forward runs", Block.runs)
result.add(model)
result.close()
