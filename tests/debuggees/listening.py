"""A plain training loop that opened the door for ``adbg attach``: goes on until the file named as argument exists."""

import os
import sys
import time

import torch
from digest import Digest

import adbg

torch.set_num_threads(1)
torch.manual_seed(18)
adbg.listen()
print("listening", os.getpid(), flush=True)
weight = torch.ones(4, requires_grad=True)
while not os.path.exists(sys.argv[1]):
    weight.grad = None
    (weight * 3).sin().sum().backward()  # @backward
    time.sleep(0.01)
result = Digest()
result.add(weight.grad)
result.close()
