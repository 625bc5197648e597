"""torch.autograd.gradcheck on a function of 2 inputs of 3 elements, in double precision."""

import torch
from digest import Digest

torch.manual_seed(11)
torch.set_num_threads(1)
a = torch.randn(3, dtype=torch.float64, requires_grad=True)
b = torch.randn(3, dtype=torch.float64, requires_grad=True)
ok = torch.autograd.gradcheck(lambda x, y: (x.sin() * y).sum(), (a, b))
result = Digest()
result.add(ok)
result.close()
