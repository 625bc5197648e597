"""torch.autograd.functional and torch.func, one after the other; prints how many times each went into the engine.

Known from their definitions: jacobian of 3 outputs is 3 calls (1 vectorised); hessian of a scalar is 1 for the gradient
and one per element (2) of it; vjp is 1, jvp is 2 (the double backward trick); func.grad 1, func.vjp 1, func.jacrev 1
(vmapped), func.hessian 1 (jacfwd of jacrev: forward mode outside): 14.
"""

import torch
from digest import Digest
from torch import func
from torch.autograd import functional

torch.manual_seed(10)
torch.set_num_threads(1)
three = torch.randn(3)
two = torch.randn(2)
result = Digest()
result.add(functional.jacobian(lambda x: x.sin() * x.sum(), three))
result.add(functional.jacobian(lambda x: x.sin() * x.sum(), three, vectorize=True))
result.add(functional.hessian(lambda x: (x**3).sum() * x.prod(), two))
result.add(functional.vjp(lambda x: x.exp().sum(), three)[1])
result.add(functional.jvp(lambda x: x.exp().sum(), three, torch.ones(3))[1])
result.add(func.grad(lambda x: x.sin().sum())(three))
value, pull = func.vjp(lambda x: x.sin(), three)
result.add(value, pull(torch.ones(3))[0])
result.add(func.jacrev(lambda x: x.sin() * x.sum())(three))
result.add(func.hessian(lambda x: (x**3).sum() * x.prod())(two))
result.close()
