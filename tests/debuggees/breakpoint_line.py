"""adbg.breakpoint() and the built-in breakpoint() at a Python line, with a graph under way. 1 backward call."""

import torch
from digest import Digest

import adbg

torch.manual_seed(0)
torch.set_num_threads(1)


def step(weight):
    hidden = (weight * 3).sin()
    adbg.breakpoint()  # @adbg_breakpoint
    loss = hidden.sum()
    if "--builtin" in __import__("sys").argv:
        breakpoint()  # @builtin_breakpoint
    loss.backward()


weight = torch.ones(4, requires_grad=True)
step(weight)
result = Digest()
result.add(weight.grad)
result.close()
