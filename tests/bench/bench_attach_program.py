"""The program that bench_attach.py attaches to: it was started with nothing of adbg's, and trains.

    python bench_attach_program.py FRAMEWORK MODEL CLOCK GAUGE [RANK WORLD MEETING]

It trains while the gauge says so, and writes how long each step took into it. With RANK it is one process of a job of
WORLD over gloo, which DistributedDataParallel has share its gradients. CLOCK is ``wall`` or ``cpu`` (of all threads of
the process): on a busy machine only the second says anything.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from gauge import END, RUN, Gauge


def job_step(rank: int, world: int, meeting: str, gauge: Gauge) -> tuple[Callable[[], None], Callable[[], int]]:
    """One step of the job, and what all ranks are to do next: rank 0 reads it for all."""
    import torch
    import torch.distributed as dist
    from torch import nn

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.Tanh())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 256, generator=torch.Generator().manual_seed(rank))
    word = torch.zeros(1)

    def step() -> None:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def wanted() -> int:
        word[0] = gauge.wanted if rank == 0 else 0
        dist.broadcast(word, 0)
        return int(word[0])

    return step, wanted


def workload_step(framework: str, model: str) -> Callable[[], None]:
    if framework == "paddle":
        import bench_paddle_models

        return bench_paddle_models.make(model).step
    import bench_models

    return bench_models.make(model).step


def main() -> None:
    framework, model, clock, file, *job = sys.argv[1:]
    now = time.process_time if clock == "cpu" else time.perf_counter
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(5)
    gauge = Gauge(file)
    if job:
        step, wanted = job_step(int(job[0]), int(job[1]), job[2], gauge)
    else:
        step, wanted = workload_step(framework, model), lambda: gauge.wanted
    first = not job or job[0] == "0"
    for _ in range(20):
        step()
    if first:
        gauge.ready()
    while (word := wanted()) != END:
        if word != RUN:
            time.sleep(0.001)
            continue
        started = now()
        step()
        if first:
            gauge.note(now() - started)


if __name__ == "__main__":
    main()
