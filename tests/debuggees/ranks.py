"""A job of ranks over gloo that a launcher starts: backward, then an all_reduce of the gradients, step by step.

    torchrun --nproc-per-node N ranks.py STEPS [TIMEOUT]

Each rank prints its pid, and at the end its numbers, and how long its group waits. One number of rank 1 differs in its
last bit from the others'.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

steps = int(sys.argv[1])
timeout = float(sys.argv[2]) if len(sys.argv) > 2 else 600.0
torch.manual_seed(3)
torch.set_num_threads(1)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
rank = dist.get_rank()
os.write(1, f"RANK {rank} pid {os.getpid()}\n".encode())  # in one piece: the ranks share a pipe
weight = torch.randn(4, 4)
if rank == 1:
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
weight.requires_grad_()
scale = weight[0, 0].item()
for step in range(steps):
    weight.grad = None
    loss = (weight @ torch.ones(4, 1)).tanh().sum()
    loss.backward()  # @backward
    dist.all_reduce(weight.grad)
    with torch.no_grad():
        weight -= 0.01 * weight.grad
os.write(1, f"END {rank} {weight.detach().double().sum().item()!r}\n".encode())
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
os.write(1, f"TIMEOUT {rank} {backend.options._timeout.total_seconds()}\n".encode())
dist.destroy_process_group()
