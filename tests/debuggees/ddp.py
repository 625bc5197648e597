"""DistributedDataParallel over gloo, two spawned ranks that meet in a file: 3 backward calls on each."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from digest import Digest
from torch import nn


def train(rank, meeting_point, results):
    torch.manual_seed(17)
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    results.put((rank, [p.detach().tolist() for p in model.parameters()]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(train, (os.path.join(folder, "meet"), results), nprocs=2)
        digest = Digest()
        digest.add(sorted(results.get() for _ in range(2)))
        digest.close()
    sys.stdout.flush()
