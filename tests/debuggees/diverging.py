"""Two ranks (gloo, meeting in a file), started with RANK in their environment as launchers do, that train the same
small model wrapped in DistributedDataParallel.

``diverging.py FOLDER WHAT [ITERATIONS]``: before iteration 3 rank 1 changes what the ranks should share: "weight" adds
0.5 to one element, "zero" turns a zero into -0.0, "nan" changes the payload of a NaN, "none" changes nothing; "alone"
trains without the wrapper, so that gradients stay each rank's own. Each rank writes
hash-RANK.json: the SHA-256 of numpy's bytes of every parameter at the begin of each backward, of every gradient at its
end, and of the buffers then.
"""

import hashlib
import json
import os
import subprocess
import sys

if "RANK" not in os.environ:  # the launcher, which needs no framework
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(n), "WORLD_SIZE": "2"})
        for n in (0, 1)
    ]
    codes = [rank.wait() for rank in ranks]
    print("trained")
    sys.exit(max(codes))

import numpy
import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)
        self.halves = nn.Parameter(torch.arange(6.0).to(torch.bfloat16).reshape(2, 3).t())  # not contiguous
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("marks", torch.tensor([0.0, float("nan")]))

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu()) + self.halves.float().mean() + self.nothing.sum()


def sha(tensor):
    value = tensor.detach().contiguous()
    if value.dtype is torch.bfloat16:
        value = value.view(torch.int16)
    return hashlib.sha256(value.numpy().tobytes()).hexdigest()


def spoil(model, what):
    with torch.no_grad():
        if what == "weight":
            model.last.weight[0, 3] += 0.5
        elif what == "zero":
            model.marks[0] = -0.0
        elif what == "nan":
            bits = numpy.array([0, 0x7FC00001], dtype=numpy.uint32).view(numpy.float32)
            model.marks.copy_(torch.from_numpy(bits))


def train(rank, folder, what, iterations):
    torch.manual_seed(17)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    net = Net()
    model = net if what == "alone" else nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(rank))
    told = []
    for iteration in range(1, iterations + 1):
        if iteration == 3 and rank == 1:
            spoil(net, what)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        begin = {name: sha(p) for name, p in model.named_parameters()}
        loss.backward()
        end = {name: sha(p.grad) for name, p in model.named_parameters() if p.grad is not None}
        told.append({"params": begin, "grads": end, "buffers": {name: sha(b) for name, b in model.named_buffers()}})
        optimizer.step()
    with open(os.path.join(folder, f"hash-{rank}.json"), "w") as file:
        json.dump(told, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train(int(os.environ["RANK"]), sys.argv[1], sys.argv[2], int((sys.argv[3:] or [4])[0]))
