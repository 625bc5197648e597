"""As ``hanging.py``, with Paddle's gloo: ``paddle_hanging.py CAUSE RANKS FOLDER``."""

import multiprocessing
import os
import socket
import sys
import threading
import time

LONG = 1000.0  # seconds: until it is killed
_LAST = ("hangs", "sleep", "mm", "works", "waits", "dies", "ends")  # what a rank notes last


class Rank:
    def __init__(self, rank, ranks, folder):
        import paddle

        self.rank, self.ranks, self.folder = rank, ranks, folder
        self.log = open(os.path.join(folder, f"rank{rank}.log"), "w", buffering=1)  # noqa: SIM115
        self.value = paddle.ones([4])

    def note(self, *words):
        print(self.rank, *words, file=self.log)
        if words[-1] in _LAST:
            self.ready()

    def ready(self):
        """What comes now hangs: told when it had the time to begin."""
        path = os.path.join(self.folder, f"ready{self.rank}")
        threading.Timer(0.3, lambda: open(path, "w").close()).start()


def mismatch(me, dist):
    import paddle

    if me.rank == 0:
        me.note("all_reduce", "4", "hangs")
        dist.all_reduce(me.value)
    else:
        me.note("broadcast", "3", "hangs")
        dist.broadcast(paddle.ones([3]), src=0)
    time.sleep(LONG)


def missing(me, dist):
    if me.rank == me.ranks - 1:
        me.note("sleep")
        time.sleep(LONG)
    me.note("barrier", "hangs")
    dist.barrier()


def parallel(me, dist):
    """The collectives of the gradients are called by C++."""
    import paddle

    model = paddle.DataParallel(paddle.nn.Linear(4, 2))
    if me.rank == 1:
        me.note("sleep")
        time.sleep(LONG)
    me.note("backward", "hangs")
    model(me.value.reshape([1, 4])).sum().backward()


def deadlock(me, dist):
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    me.ready()
    for group in (one, two) if me.rank == 0 else (two, one):
        me.note("all_reduce", "4", group.id)
        dist.all_reduce(me.value, group=group)


def run(rank, cause, ranks, folder, ports):
    ends = [f"127.0.0.1:{port}" for port in ports]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(ranks),
        PADDLE_TRAINER_ENDPOINTS=",".join(ends),
        PADDLE_CURRENT_ENDPOINT=ends[rank],
        PADDLE_MASTER=ends[0],
        PADDLE_DISTRI_BACKEND="gloo",
    )
    import paddle.distributed as dist

    dist.init_parallel_env()
    me = Rank(rank, ranks, folder)
    for _ in range(3):
        me.note("all_reduce", "4", "step")
        dist.all_reduce(me.value)
    globals()[cause](me, dist)


def free_ports(number):
    found = [socket.socket() for _ in range(number)]
    for each in found:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports


if __name__ == "__main__":
    cause, ranks, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    context = multiprocessing.get_context("spawn")
    ports = free_ports(ranks)
    children = [context.Process(target=run, args=(rank, cause, ranks, folder, ports)) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
