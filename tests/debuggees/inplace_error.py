"""The classic: a tensor that exp needs for its backward is changed in place. Ends with torch's own error, status 1."""

import torch

x = torch.ones(4, requires_grad=True)
y = torch.exp(x * 0.5)  # @fails
z = y.sum() + y.mean()
y += 1  # @changed
z.backward()  # @backward
