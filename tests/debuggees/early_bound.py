"""Every way in from Python: references bound before anything could be patched, inputs=, batched. 6 backward calls."""

from torch.autograd import backward as early_backward  # isort: skip
from torch.autograd import grad as early_grad  # isort: skip

import torch
from digest import Digest

torch.manual_seed(9)
torch.set_num_threads(1)
a, b = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
result = Digest()
result.add(*early_grad((a * b).sum(), (a, b)))
early_backward([(a * 2).sum(), (b * 3).sum()])
torch.autograd.backward((a * b).sum(), inputs=[a])
result.add(*torch.autograd.grad(a * b, a, torch.eye(4), is_grads_batched=True))
bound = (a.sin() * b).sum().backward
bound()
(a * b).backward(torch.ones(4))
result.add(a.grad, b.grad)
result.close()
