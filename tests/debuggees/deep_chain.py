"""A chain of 100,000 nodes (or as many as the argument says). 1 backward call.

Plain torch 2.13 frees such a graph safely as long as Python has touched none, or few, of its nodes.
"""

import sys

import torch
from digest import Digest

torch.manual_seed(0)
torch.set_num_threads(1)
LENGTH = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
y = x
for _ in range(LENGTH // 2):
    y = (y * 1.000001) + 1e-6
y.backward()
result = Digest()
result.add(x.grad, y)
del y
result.close()
