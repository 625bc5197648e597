"""Two gloo ranks that sum a tensor; rank 1 comes only once the file FOLDER/go is there.

    python hanging_ranks.py FRAMEWORK RANK FOLDER

SIGUSR1 has Python itself write its stacks into FOLDER/stacksRANK.
"""

import faulthandler
import os
import signal
import sys
import time


def main(framework, rank, folder):
    stacks = open(f"{folder}/stacks{rank}", "w")  # noqa: SIM115  (the handler writes to it)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    total = {"torch": with_torch, "paddle": with_paddle}[framework](rank, folder)
    print("done", total, flush=True)


def late(rank, folder):
    print("hangs", flush=True)
    while rank and not os.path.exists(f"{folder}/go"):
        time.sleep(0.1)


def with_torch(rank, folder):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    part = torch.full((3,), 1.0 + rank)
    late(rank, folder)
    dist.all_reduce(part)  # @torch
    dist.barrier()
    dist.destroy_process_group()
    return part.tolist()


def with_paddle(rank, folder):
    import paddle.distributed as dist

    os.chdir(folder)  # its store writes a log there
    dist.gloo_init_parallel_env(rank, 2, f"127.0.0.1:{sys.argv[4]}")
    late(rank, folder)
    dist.gloo_barrier()  # @paddle
    return [3.0, 3.0, 3.0]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
