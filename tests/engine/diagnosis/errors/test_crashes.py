"""Processes that a signal kills: the program itself, and the workers of a loader. Witness: the signal in the exit
status, or in the framework's own words, and the marked line, which is the one that reaches for memory that is not the
process's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.diagnosing import check_healthy, diagnose, findings, line_of
from support.frameworks import on_frameworks, only
from support.program import Outcome

from adbg.engine.diagnosis.detectors.errors.killed_worker import is_of_worker

HEAD = {
    "torch": """
import ctypes, os, signal
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
Function, noise = torch.autograd.Function, torch.randn
def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.01)
""",
    "paddle": """
import ctypes, os, signal
import numpy
import paddle
from paddle import nn
from paddle.io import DataLoader, Dataset
paddle.seed(0)
Function, noise = paddle.autograd.PyLayer, lambda *shape: paddle.randn(shape)
def sgd(net):
    return paddle.optimizer.SGD(0.01, parameters=net.parameters())
""",
}
BACKWARD = """
class Scale(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        values = (ctypes.c_float * 4).from_address(8)
        values[0] = 1.0  # CAUSE
        return grad * 2

net = nn.Linear(4, 4)
optimizer = sgd(net)
for step in range(8):
    out = net(noise(3, 4))
    if step == 5:
        out = Scale.apply(out)
    out.square().mean().backward()
    optimizer.step()
    optimizer.CLEAR()
"""
FORWARD = """
def native_sum(values):
    return ctypes.string_at(16, values.size)  # CAUSE

net = nn.Linear(4, 4)
optimizer = sgd(net)
for step in range(8):
    x = noise(3, 4)
    if step == 3:
        native_sum(x.numpy())
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.CLEAR()
"""
# Its stack is full.
ENDLESS = """
class Tree:
    def __repr__(self):
        return repr([self])  # CAUSE

import sys
sys.setrecursionlimit(10 ** 7)
net = nn.Linear(4, 4)
for step in range(4):
    net(noise(3, 4)).square().mean().backward()
print(Tree())
"""
LOADER = """
class Clips(Dataset):
    def __len__(self):
        return 64
    def decode(self, index):
        if index == 37:
            BREAK
        return b"abcd"
    def __getitem__(self, index):
        return numpy.full((4,), float(len(self.decode(index))), dtype="float32")

def main():
    net = nn.Linear(4, 4)
    optimizer = sgd(net)
    for x in DataLoader(Clips(), batch_size=4, num_workers=2):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.CLEAR()
    print("done")

if __name__ == "__main__":
    main()
"""
# Deep, and not full: what crashes is the leaf.
DEEP = FORWARD.replace(
    "    return ctypes.string_at(16, values.size)  # CAUSE",
    """    def down(depth):
        if not depth:
            return ctypes.string_at(16, 4)  # CAUSE
        return down(depth - 1)
    return down(45)""",
)
# No file is behind the innermost frame of Python's.
EVALUATED = FORWARD.replace("    return ctypes.string_at(16, values.size)  # CAUSE",
                            "    return eval('ctypes.string_at(16, 4)')  # CAUSE")  # fmt: skip
CRASHES = {
    "a custom backward": BACKWARD, "the forward": FORWARD, "a stack that is full": ENDLESS, "deep down": DEEP,
    "evaluated text": EVALUATED,
}  # fmt: skip
#: how the worker dies: (what stands there, the signal)
WORKERS = {
    "memory": ("return ctypes.string_at(16, 4)  # CAUSE", "SIGSEGV"),
    "an abort": ("os.abort()  # CAUSE", "SIGABRT"),
}
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
# It is none of the loader's workers, and nothing of the program's comes of it.
CHILD = """
net = nn.Linear(4, 4)
for step in range(4):
    net(noise(3, 4)).square().mean().backward()
child = os.fork()
if not child:
    ctypes.string_at(16)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def program(framework: str, body: str) -> str:
    clear = "zero_grad" if framework == "torch" else "clear_grad"
    return HEAD[framework] + body.replace("CLEAR()", f"{clear}()")


def first(outcome: Outcome) -> dict[str, Any]:
    found = [each for each in findings(outcome) if each["severity"] != "note"]
    assert len(found) == 1, str(outcome)
    return found[0]


@on_frameworks()
@pytest.mark.parametrize("name", CRASHES)
def test_the_line_at_which_the_process_was_killed(framework: str, tmp_path: Path, name: str) -> None:
    text = program(framework, CRASHES[name])
    outcome = diagnose(tmp_path, text)
    found = first(outcome)
    assert (found["kind"], found["severity"], found["cause"]["line"]) == ("crash", "error", line_of(text)), str(outcome)
    assert "SIGSEGV" in found["message"], str(outcome)
    assert ("until the stack is full" in found["message"]) is (name == "a stack that is full"), str(outcome)
    assert outcome.status == 139, str(outcome)
    assert found["evidence"], str(outcome)


@on_frameworks()
def test_only_what_was_asked_for(framework: str, tmp_path: Path) -> None:
    text = program(framework, FORWARD)
    assert not findings(diagnose(tmp_path, text, "--only", "zero-grad"))
    assert first(diagnose(tmp_path, text, "--only", "crash"))["kind"] == "crash"


@on_frameworks()
@pytest.mark.parametrize("name", WORKERS)
def test_the_line_at_which_a_worker_was_killed(framework: str, tmp_path: Path, name: str) -> None:
    line, signal = WORKERS[name]
    text = program(framework, LOADER.replace("BREAK", line))
    outcome = diagnose(tmp_path, text)
    found = first(outcome)
    assert (found["kind"], found["severity"]) == ("worker-killed", "error"), str(outcome)
    assert found["cause"]["line"] == line_of(text) and signal in found["message"], str(outcome)


@on_frameworks()
def test_a_worker_that_leaves_no_stack(framework: str, tmp_path: Path) -> None:
    text = program(framework, LOADER.replace("BREAK", KILLED))
    found = first(diagnose(tmp_path, text))
    assert (found["kind"], found["severity"]) == ("worker-killed", "warning"), found
    assert found["cause"]["function"] == "__getitem__" and "SIGKILL" in found["message"], found


def test_a_death_that_another_exception_was_raised_for() -> None:
    """torch raises "exited unexpectedly" where the signal of the death met its loader as that waited for a file."""
    error = RuntimeError("DataLoader worker (pid(s) 13316) exited unexpectedly")
    assert not is_of_worker(error)
    error.__cause__ = RuntimeError("DataLoader worker (pid 13316) is killed by signal: Killed. ")
    assert is_of_worker(error)


@on_frameworks()
def test_workers_that_live(framework: str, tmp_path: Path) -> None:
    check_healthy(tmp_path, program(framework, LOADER.replace("BREAK", "pass")))


@only("torch", "Paddle prints the time and the number of a process that crashes: no two runs are the same")
def test_a_child_that_crashes(tmp_path: Path) -> None:
    check_healthy(tmp_path, program("torch", CHILD))
