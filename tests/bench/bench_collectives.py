"""What a row of the ledger costs a collective: ``python tests/bench/bench_collectives.py``, with the Python of either
framework. One process, a group of one, CPU time of the calling thread. "a row": the tap and the tap of ``wait`` around
a stub, less the stub, least of the repetitions; this is the ledger's own cost. Then real calls with the taps and
without, in alternation: what is more there is the scheduler's and the caches' (with gloo a call wakes a thread).
"""

from __future__ import annotations

import collections
import importlib.util
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adbg.engine.collectives.ledger import Ledger
from adbg.engine.record.journal import Journal

CALLS = 2000
REPETITIONS = 15
FAST = 0.25  # the share of repetitions, the quickest, that counts: others met the machine's other work


def torch_calls() -> tuple[Any, dict[str, Callable[[], Any]]]:
    import torch
    import torch.distributed as dist

    from adbg.engine.backends.torch.backend import TorchBackend

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meet = os.path.join(tempfile.mkdtemp(), "meet")
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=0, world_size=1)
    tensor = torch.ones(8)
    return TorchBackend(), {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "barrier": lambda: dist.barrier(),
    }


def paddle_calls() -> tuple[Any, dict[str, Callable[[], Any]]]:
    import paddle
    from paddle.base import core
    from paddle.distributed.communication import group as groups

    from adbg.engine.backends.paddle.backend import PaddleBackend

    os.environ.setdefault("PADDLE_TRAINER_ID", "0")
    store = core.TCPStore("127.0.0.1", _free_port(), True, 1, 60)
    process_group = core.ProcessGroupGloo.create(store, 0, 1, 0)
    group = groups.Group(0, 0, [0], process_group, "_default_pg")
    groups._add_new_group(group)
    tensor = paddle.ones([8])
    return PaddleBackend(), {
        "all_reduce": lambda: process_group.all_reduce(tensor, core.ReduceOp.SUM, True),
        "broadcast": lambda: process_group.broadcast(tensor, 0, True),
    }


def row_cost(taps: Any, ledger: Ledger, group: Any, arguments: tuple[Any, ...], method: Any) -> float:
    """Microseconds of a row, with a stub in the framework's place."""

    class Work:
        """What the stub returns."""

    work = Work()

    def stub(group: Any, *args: Any) -> Any:
        return work

    def waited(work: Any) -> None: ...

    tap, wait = taps._method(stub, method, ledger), taps._wait(waited)

    def plainly() -> None:
        waited(stub(group, *arguments))

    def tapped() -> None:
        wait(tap(group, *arguments))

    return min(microseconds(tapped) for _ in range(REPETITIONS)) - min(
        microseconds(plainly) for _ in range(REPETITIONS)
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def microseconds(call: Callable[[], Any]) -> float:
    begun = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - begun) / CALLS * 1e6


def stubbed(framework: str) -> tuple[Any, tuple[Any, ...], Any]:
    """A group, the arguments of an all_reduce, and how the taps know the method."""
    if framework == "torch":
        import torch
        import torch.distributed as dist

        from adbg.engine.backends.torch.collectives.taps import _METHODS

        return dist.group.WORLD, ([torch.ones(8)], dist.AllreduceOptions()), _METHODS["allreduce"]
    import paddle
    from paddle.base import core
    from paddle.distributed.communication import group as groups

    from adbg.engine.backends.paddle.collectives import taps

    return (
        groups._get_global_group().process_group,
        (paddle.ones([8]), core.ReduceOp.SUM, True),
        taps._METHODS["all_reduce"],
    )


def main() -> None:
    backend, calls = torch_calls() if importlib.util.find_spec("torch") else paddle_calls()
    queue: collections.deque[Any] = collections.deque()
    ledger = Ledger(lambda groups: None)
    ledger.backend_added(backend)
    ledger.record_into(queue.append)
    taps = backend.collectives()
    print(f"{backend.name} {backend.version}: CPU time of the calling thread, us a call")
    taps.install()
    print(f"  a row {row_cost(taps, ledger, *stubbed(backend.name)):.2f}")
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder), "0")
        ledger.keep_in(journal.collective)
        print(f"  a row, and its entry in the crash journal {row_cost(taps, ledger, *stubbed(backend.name)):.2f}")
    taps.uninstall()
    before = ledger.total
    for name, call in calls.items():
        plain, tapped = [], []
        for _ in range(REPETITIONS):
            plain.append(microseconds(call))
            taps.install()
            tapped.append(microseconds(call))
            taps.uninstall()
            queue.clear()
        quick = max(1, int(REPETITIONS * FAST))
        without, with_taps = (statistics.median(sorted(each)[:quick]) for each in (plain, tapped))
        print(f"  {name:<12} without {without:6.2f}  with {with_taps:6.2f}  the ledger {with_taps - without:5.2f}")
    assert ledger.number() - 1 - before == len(calls) * REPETITIONS * CALLS, "the taps missed calls"


if __name__ == "__main__":
    main()
