"""Ranks that call different collectives, for which gloo ends one of them (SIGABRT) a moment after the call: nobody can
be asked any more, and the job's launcher ends the others. Witness: gloo's own words, and what each rank wrote before
each of its calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.diagnosing import findings, line_of
from support.frameworks import only
from support.job import free_port, paddle_ranks
from support.program import Outcome, adbg

HEAD = """
import ctypes, datetime, os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Wrap

def begin(rank):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="PORT")
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=20))
    torch.manual_seed(rank)

def tell(rank, what):
    os.write(1, f"CALLS {rank} {what}\\n".encode())
"""
TAIL = """
if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
"""
# The other rank is not ended by the launcher: it loses its connection, raises, and ends in good order.
ALONE = """
if __name__ == "__main__":
    ranks = [mp.get_context("spawn").Process(target=train, args=(rank, 2)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
"""
# A helper with a collective, which one rank alone is let into.
ONE_RANK = """
def validate(model, x, y):
    loss = nn.functional.mse_loss(model(x), y).detach()
    tell(dist.get_rank(), "the loss")
    dist.all_reduce(loss)
    return loss.item()

def train(rank, world):
    begin(rank)
    model = Wrap(nn.Linear(10, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        x, y = torch.randn(16, 10), torch.randn(16, 1)
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
        if step % 5 == 4 and rank == 0:
            print(step, validate(model.module, x, y))  # CAUSE
"""
SIZES = """
def train(rank, world):
    begin(rank)
    model = nn.Linear(10, 1)
    for step in range(20):
        x, y = torch.randn(16 + 4 * rank, 10), torch.randn(16 + 4 * rank, 1)
        loss = nn.functional.mse_loss(model(x), y, reduction="none")
        loss.mean().backward()
        if step == 9:
            tell(rank, f"the losses of {len(loss)}")
            dist.all_reduce(loss.detach())  # CAUSE
        for each in model.parameters():
            dist.all_reduce(each.grad)
"""
# Whether a rank comes there depends on its own data.
BRANCH = """
def train(rank, world):
    begin(rank)
    model = Wrap(nn.Linear(10, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    best = float("inf")
    for step in range(60):
        x, y = torch.randn(16, 10), torch.randn(16, 1)
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        if loss.item() < best:  # CAUSE
            best = loss.item()
            tell(rank, "the best")
            dist.all_reduce(torch.tensor([best, float(step)]))
"""
UNEVEN = """
def train(rank, world):
    begin(rank)
    model = Wrap(nn.Linear(10, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(100 + 17 * rank, 10)
    for start in range(0, len(data), 16):  # CAUSE
        x = data[start:start + 16]
        opt.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        opt.step()
    total = torch.tensor([loss.item()])
    tell(rank, "the total")
    dist.all_reduce(total)
"""
# It dies of something else, between two collectives that all ranks call alike.
OTHERWISE = """
def train(rank, world):
    begin(rank)
    model = Wrap(nn.Linear(10, 1))
    for step in range(20):
        x, y = torch.randn(16, 10), torch.randn(16, 1)
        nn.functional.mse_loss(model(x), y).backward()
        dist.all_reduce(torch.ones(3))
        if step == 12 and rank == 1:
            ctypes.string_at(0)  # CAUSE
"""
#: the words that the message has, and what the killed rank told of its last call
CASES: dict[str, tuple[str, str, str]] = {
    "a rank alone": (ONE_RANK, "did not come to all_reduce", "the loss"),
    "sizes": (SIZES, "the number of elements differs", "the losses of"),
    "a branch on its data": (BRANCH, "did not come to all_reduce", "the best"),
    "a loop that is shorter": (UNEVEN, "did not come to all_reduce", "the total"),
}


def diagnosed(folder: Path, body: str, tail: str = TAIL) -> tuple[str, list[dict[str, Any]], Outcome]:
    text = (HEAD.replace('"PORT"', f'"{free_port()}"') + body + tail).lstrip()
    (folder / "train.py").write_text(text)
    outcome = adbg("diagnose", "--json", "--timeout", "70", folder / "train.py", cwd=folder, limit=150)
    return text, [each for each in findings(outcome) if each["severity"] != "note"], outcome


@only("torch", "the jobs are started by torch's own means")
@pytest.mark.parametrize("name", CASES)
def test_what_the_ranks_called_last(tmp_path: Path, name: str) -> None:
    body, words, told = CASES[name]
    text, found, outcome = diagnosed(tmp_path, body)
    assert "Received data size doesn't match expected size" in str(outcome), str(outcome)
    assert [each["kind"] for each in found[:1]] == ["hang"], str(outcome)
    one = found[0]
    assert one["severity"] == "error" and one["cause"]["line"] == line_of(text, "# CAUSE"), str(outcome)
    assert one["message"].startswith("a rank was killed because the ranks called different collectives: "), str(one)
    assert words in one["message"], str(one)
    # Whom gloo ended is the rank whose call the table has, and it told of that call last.
    (gone,) = [re.match(r"\s*(\d+)\s+its process is gone", each) for each in one["evidence"] if "is gone" in each]
    assert gone is not None
    calls = re.findall(rf"^CALLS {gone[1]} (.*)$", outcome.program_output, re.MULTILINE)
    assert calls and told in calls[-1], str(outcome)


@only("torch", "the jobs are started by torch's own means")
def test_a_rank_that_ends_for_it_has_lost_the_killed_one(tmp_path: Path) -> None:
    text, found, outcome = diagnosed(tmp_path, UNEVEN, ALONE)
    hangs = [each for each in found if each["kind"] == "hang"]
    assert len(hangs) == 1 and hangs[0]["cause"]["line"] == line_of(text, "# CAUSE"), str(outcome)
    assert "did not come to all_reduce" in hangs[0]["message"], str(outcome)


PADDLE = """
import os
import paddle
import paddle.distributed as dist
from paddle import nn

dist.init_parallel_env()
rank = dist.get_rank()
paddle.seed(rank)
model = nn.Linear(10, 1)
for step in range(20):
    x, y = paddle.randn([16 + 4 * rank, 10]), paddle.randn([16 + 4 * rank, 1])
    loss = nn.functional.mse_loss(model(x), y, reduction="none")
    loss.mean().backward()
    if step == 9 WHO:
        os.write(1, f"CALLS {rank} the losses of {len(loss)}\\n".encode())
        dist.all_reduce(loss.detach())  # CAUSE
    for each in model.parameters():
        dist.all_reduce(each.grad)
"""


@only("paddle", "the jobs are started by Paddle's own means")
@pytest.mark.parametrize("who", ["", "and rank == 0"], ids=["sizes", "a rank alone"])
def test_what_the_ranks_of_paddle_called_last(tmp_path: Path, who: str) -> None:
    """The rank that is not killed loses its connection, and raises: that is folded under the cause."""
    text = PADDLE.replace(" WHO", f" {who}" * bool(who)).lstrip()
    (tmp_path / "train.py").write_text(text)
    command = paddle_ranks(tmp_path, tmp_path / "train.py")
    outcome = adbg("diagnose", "--json", "--timeout", "70", "--", *command, cwd=tmp_path, limit=150)
    found = [each for each in findings(outcome) if each["severity"] != "note"]
    assert "op.preamble.length <= op.nbytes" in str(outcome), str(outcome)  # gloo's words
    assert [each["kind"] for each in found] == ["hang"], str(outcome)
    assert found[0]["cause"]["line"] == line_of(text, "# CAUSE"), str(outcome)
    sizes = {int(each) for each in re.findall(r"CALLS \d the losses of (\d+)", outcome.program_output)}
    assert sizes == ({16} if who else {16, 20}), str(outcome)
    assert all(f"all_reduce float32[{each}, 1] SUM" in found[0]["message"] for each in sizes), str(outcome)


@only("torch", "of what gloo ends on torch")
def test_a_rank_that_dies_of_something_else(tmp_path: Path) -> None:
    text, found, outcome = diagnosed(tmp_path, OTHERWISE)
    assert "SIGSEGV" in str(outcome) or "Segmentation fault" in str(outcome), str(outcome)
    assert "hang" not in [each["kind"] for each in found], str(outcome)
    assert [each["kind"] for each in found[:1]] == ["crash"], str(outcome)
    assert found[0]["cause"]["line"] == line_of(text, "# CAUSE"), str(outcome)
