"""torch.jit.script goes on compiling functions that name torch.autograd.grad; 2 backward calls from Python, 1 from C++.

The call inside the scripted function goes from C++ straight into the engine: it cannot be seen, which ``adbg doctor``
says.
"""

import warnings

import torch
from digest import Digest

warnings.simplefilter("ignore")
torch.manual_seed(15)
torch.set_num_threads(1)


@torch.jit.script
def scaled(x):
    return torch.tanh(x) * 2.0


@torch.jit.script
def slope(x):
    y = torch.sin(x).sum()
    return torch.autograd.grad([y], [x])[0]


x = torch.randn(5, requires_grad=True)
result = Digest()
for _ in range(2):
    scaled(x).sum().backward()
result.add(x.grad, slope(x))
result.close()
