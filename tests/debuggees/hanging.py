"""Ranks over gloo that hang, each for one cause: ``hanging.py CAUSE RANKS FOLDER``. What each rank calls goes into
``FOLDER/rank<N>.log`` first, one line a call: the witness of what a verdict says. A folder of the caller's, since ranks
that are killed leave it."""

import multiprocessing
import os
import sys
import threading
import time

if __name__ != "__main__" or "RANK" in os.environ:  # what starts the ranks needs no torch
    import torch
    import torch.distributed as dist
    from torch.distributed import all_reduce as early_bound  # by a name that is older than adbg's taps

LONG = 1000.0  # seconds: until it is killed
_LAST = ("hangs", "sleep", "mm", "works", "waits", "dies", "ends")  # what a rank notes last


class Rank:
    def __init__(self, rank, ranks, folder):
        self.rank, self.ranks, self.folder = rank, ranks, folder
        self.log = open(os.path.join(folder, f"rank{rank}.log"), "w", buffering=1)  # noqa: SIM115
        self.value = torch.ones(4)

    def note(self, *words):
        print(self.rank, *words, file=self.log)
        if words[-1] in _LAST:
            self.ready()

    def ready(self):
        """What comes now hangs: told when it had the time to begin."""
        path = os.path.join(self.folder, f"ready{self.rank}")
        threading.Timer(0.3, lambda: open(path, "w").close()).start()

    def wait_for_all(self):
        """Until each rank came here, without a collective."""
        open(os.path.join(self.folder, f"here{self.rank}"), "w").close()
        while not all(os.path.exists(os.path.join(self.folder, f"here{rank}")) for rank in range(self.ranks)):
            time.sleep(0.02)

    def steps(self, number, group=None):
        for _ in range(number):
            self.note("all_reduce", "4", "step")
            early_bound(self.value, group=group)


def mismatch(me):
    if me.rank == 0:
        me.note("all_reduce", "4", "hangs")
        dist.all_reduce(me.value)  # alone
    else:
        me.note("broadcast", "4", "hangs")
        dist.broadcast(me.value, 0)
        me.note("barrier", "hangs")
        dist.barrier()


def missing(me):
    if me.rank == me.ranks - 1:
        me.note("sleep")
        time.sleep(LONG)
    me.note("barrier", "hangs")
    dist.barrier()


def counts(me):
    me.ready()
    batches = 5 if me.rank == 0 else 4
    for _ in range(batches):
        me.note("all_reduce", "4", "batch")
        dist.all_reduce(me.value)
    me.note("broadcast", "2", "after")
    dist.broadcast(torch.ones(2), 1)
    me.note("barrier")
    dist.barrier()


def keep(me):
    me.note("barrier", "hangs")
    dist.barrier()


def saved(me):
    for step in range(4):
        me.note("all_reduce", "4", "hangs" if step == 2 else "step")
        dist.all_reduce(me.value)  # of every step
        if step % 2 == 1 and me.rank == 0:
            keep(me)


def ended(me):
    if me.rank == 1:
        me.note("ends")
        return
    me.note("all_reduce", "4", "hangs")
    dist.all_reduce(me.value)


def slow(me):
    me.note("works" if me.rank == 1 else "waits")
    deadline = time.monotonic() + LONG
    while me.rank == 1 and time.monotonic() < deadline:
        sum(range(1000))
    dist.all_reduce(me.value)


def kernel(me):
    if me.rank == 1:
        me.note("mm")
        big = torch.ones(3000, 3000)
        for _ in range(10):
            torch.linalg.svd(big)
    me.note("all_reduce", "4", "hangs")
    dist.all_reduce(me.value)


def deadlock(me):
    """Two groups of both ranks, in the other order on each."""
    one, two = dist.new_group(list(range(me.ranks))), dist.new_group(list(range(me.ranks)))
    first, second = (one, two) if me.rank == 0 else (two, one)
    me.ready()
    for group in (first, second):
        me.note("all_reduce", "4", group.group_name)
        dist.all_reduce(me.value, group=group)


def ring(me):
    """Four ranks, pairs as groups: each waits in the pair with its neighbour on the right."""
    pairs = [dist.new_group([rank, (rank + 1) % me.ranks]) for rank in range(me.ranks)]
    me.ready()
    for pair in (me.rank, (me.rank - 1) % me.ranks):
        me.note("all_reduce", "4", pairs[pair].group_name)
        dist.all_reduce(me.value, group=pairs[pair])


def died(me):
    if me.rank == 1:
        me.note("dies")
        time.sleep(1)
        os.kill(os.getpid(), 9)
    me.note("all_reduce", "4", "hangs")
    # A gloo neighbour that is gone ends the call with an error; what waits for a third rank waits on.
    try:
        dist.all_reduce(me.value)
    except RuntimeError:
        me.note("error")
        time.sleep(LONG)


def ddp(me):
    """The collectives of the gradients are called by C++."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(me.value).sum().backward()
    me.note("backward")
    if me.rank == 1:
        me.note("sleep")
        time.sleep(LONG)  # behind a backward
    me.note("backward", "hangs")
    model(me.value).sum().backward()  # hangs


def cross(me):
    """Each receives from the other."""
    me.ready()
    me.note("recv", 1 - me.rank)
    dist.recv(me.value, 1 - me.rank)


def fine(me):
    """Nothing hangs: a step every few milliseconds, until the folder is told to end it."""
    me.ready()
    while not os.path.exists(os.path.join(me.folder, "end")):
        dist.all_reduce(me.value)
        time.sleep(0.005)
        if me.rank == 0 and os.path.exists(os.path.join(me.folder, "end")):
            break
    os._exit(0)


def run(rank, cause, ranks, folder):
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    me = Rank(rank, ranks, folder)
    me.steps(3)
    me.wait_for_all()
    globals()[cause](me)


if __name__ == "__main__":
    cause, ranks, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if "RANK" in os.environ:  # a launcher's child
        run(int(os.environ["RANK"]), cause, ranks, folder)
    else:
        context = multiprocessing.get_context("spawn")
        children = [context.Process(target=run, args=(rank, cause, ranks, folder)) for rank in range(ranks)]
        for child in children:
            child.start()
        for child in children:
            child.join()
