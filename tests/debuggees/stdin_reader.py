"""Reads its learning rates from standard input, one a line, until it ends.

One backward call per line; exits with the count.
"""

import sys

import torch
from digest import Digest

torch.manual_seed(0)
torch.set_num_threads(1)
weight = torch.ones(4, requires_grad=True)
print("rates?", flush=True)
count = 0
result = Digest()
for line in sys.stdin:
    weight.grad = None
    (weight * float(line)).sin().sum().backward()
    result.add(weight.grad)
    count += 1
result.close()
sys.exit(count)
