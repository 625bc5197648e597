"""Spawned ranks are told apart without RANK in their environment, the launcher has none; ``continue all``."""

from __future__ import annotations

from pathlib import Path

from support.frameworks import only
from support.program import adbg, commands

TORCH = """
import os, sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, folder):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=1 - rank, world_size=2)
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        x.tanh().sum().backward()
    print(f"RANK {dist.get_rank()} pid {os.getpid()}\\n", end="", flush=True)  # in one piece
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print("LAUNCHER", os.getpid(), flush=True)
        mp.spawn(train, (folder,), nprocs=2)
"""
PADDLE = """
import os
import paddle, paddle.distributed as dist

def train():
    x = paddle.ones([3])
    x.stop_gradient = False
    for _ in range(2):
        paddle.tanh(x).sum().backward()
    print(f"RANK {dist.get_rank()} pid {os.getpid()}\\n", end="", flush=True)  # in one piece

if __name__ == "__main__":
    print("LAUNCHER", os.getpid(), flush=True)
    dist.spawn(train, nprocs=2, backend="gloo")
"""


def _ranks_are_told(script: Path) -> None:
    """The witness is what each process prints of itself."""
    options = ["-b", "*anh* backward 2", *commands("c", "info processes", "c", "continue all")]
    outcome = adbg("run", "--batch", "--json", *options, script, limit=240)
    assert outcome.status == 0, str(outcome)
    printed = outcome.program_output.splitlines()
    witness = {int(line.split()[3]): int(line.split()[1]) for line in printed if line.startswith("RANK")}
    launcher = next(int(line.split()[1]) for line in printed if line.startswith("LAUNCHER"))
    assert sorted(witness.values()) == [0, 1]
    (table,) = outcome.of("result", command="info processes")
    known = {row["pid"]: row["rank"] for row in table["value"]}
    assert known[launcher] is None
    stops = outcome.of("stopped")
    assert {known[pid] for pid in witness if pid in known} <= {*witness.values(), None}
    assert all(known.get(pid) in (rank, None) for pid, rank in witness.items())
    assert sorted(line["rank"] for line in stops) == [0, 1], "each rank stops once, under its own number"
    shown = [line["text"] for line in outcome.of("notice") if "is the current process" in line["text"]]
    assert shown, "what is shown does not change without a word"


@only("torch", "ranks that torch.multiprocessing spawns")
def test_spawned_ranks_of_torch(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(TORCH)
    _ranks_are_told(script)


@only("paddle", "ranks that paddle.distributed.spawn starts")
def test_spawned_ranks_of_paddle(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(PADDLE)
    _ranks_are_told(script)
