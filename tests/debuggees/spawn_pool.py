"""A spawned pool computes gradients.

The ``__main__`` guard and the children's own imports must work. 1 backward + 4 in children.
"""

import multiprocessing

import torch
from digest import Digest


def gradient_at(value):
    torch.set_num_threads(1)
    x = torch.tensor(float(value), requires_grad=True)
    x.sin().backward()
    return x.grad.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        gradients = pool.map(gradient_at, [1, 2, 3, 4])
    result = Digest()
    result.add(gradients, gradient_at(5))
    result.close()
