"""A bank of features of a fixed size that is written into with their graphs: the line that writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.diagnosing_many import diagnose_each
from support.frameworks import FRAMEWORKS, case

PROGRAMS = {
    "torch": """
import torch
from torch import nn
torch.manual_seed(0)
class Bank:
    def __init__(self):
        self.rows, self.at = torch.zeros(32, 8), 0
    def enqueue(self, rows):
        WRITE
        self.at = (self.at + len(rows)) % 32
def main():
    net, bank = nn.Linear(8, 8), Bank()
    opt = torch.optim.SGD(net.parameters(), 1e-2)
    for step in range(30):
        loss = net(torch.randn(16, 8)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank.enqueue(net(torch.randn(8, 8)))
    print("graph", bank.rows.grad_fn is not None)
main()
""",
    "paddle": """
import paddle
from paddle import nn
paddle.seed(0)
class Bank:
    def __init__(self):
        self.rows, self.at = paddle.zeros([32, 8]), 0
    def enqueue(self, rows):
        WRITE
        self.at = (self.at + len(rows)) % 32
def main():
    net, bank = nn.Linear(8, 8), Bank()
    opt = paddle.optimizer.SGD(1e-2, parameters=net.parameters())
    for step in range(30):
        loss = net(paddle.randn([16, 8])).square().mean()
        loss.backward()
        opt.step()
        opt.clear_grad()
        bank.enqueue(net(paddle.randn([8, 8])))
    print("graph", not bank.rows.stop_gradient)
main()
""",
}


@pytest.mark.parametrize("framework", [case(name, name) for name in FRAMEWORKS])
def test_the_line_that_writes(framework: str, tmp_path: Path) -> None:
    head = PROGRAMS[framework]
    write = "self.rows[self.at : self.at + len(rows)] = rows"
    runs = diagnose_each(
        framework,
        tmp_path,
        {
            "kept": head.replace("WRITE", f"{write}  # CAUSE"),
            "detached": head.replace("WRITE", f"{write}.detach()"),
        },
    )
    found = runs["kept"].check_first("graph-kept")
    assert "bank.rows keeps the graphs of all earlier iterations" in found["message"], found
    assert "graph True" in runs["kept"].output and "graph False" in runs["detached"].output
    assert not runs["detached"].above_notes(), runs["detached"]


# Sums that carry the graphs on, and what is computed of them and put away: the sums are the cause.
AVERAGES = {
    name: text.replace(text[text.index("class Bank:") : text.index("def main():")], """
class Bank:
    def __init__(self):
        self.sums, self.codes = ZEROS, None
    def enqueue(self, rows):
        self.sums = 0.9 * self.sums + 0.1 * rows.sum(0)  # CAUSE
        self.codes = self.sums / 3
""".replace("ZEROS", "torch.zeros(8)" if name == "torch" else "paddle.zeros([8])")).replace("bank.rows", "bank.sums")
    for name, text in PROGRAMS.items()
}  # fmt: skip


@pytest.mark.parametrize("framework", [case(name, name) for name in FRAMEWORKS])
def test_what_is_computed_of_it_follows(framework: str, tmp_path: Path) -> None:
    run = diagnose_each(framework, tmp_path, {"averages": AVERAGES[framework]})["averages"]
    assert "bank.sums keeps" in run.check_first("graph-kept")["message"]
    assert len(run.above_notes()) == 1, run
