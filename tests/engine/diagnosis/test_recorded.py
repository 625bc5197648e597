"""What the record of a run without diagnosis proves of a NaN. Witness: the loss as the program prints it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.diagnosing import findings
from support.frameworks import on_frameworks
from support.program import adbg

# In the third iteration p is 0: log(p) is -inf, and the loss NaN.
PROGRAMS = {
    "torch": """
import torch
w = torch.nn.Parameter(torch.ones(4))
for step in range(4):
    p = (torch.ones(4) - int(step == 2)) * w
    loss = -(p * p.log()).sum()
    print(loss.item())
    loss.backward()
    w.grad = None
""",
    "paddle": """
import paddle
w = paddle.create_parameter([4], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
for step in range(4):
    p = (paddle.ones([4]) - int(step == 2)) * w
    loss = -(p * p.log()).sum()
    print(loss.item())
    loss.backward()
    w.clear_grad()
""",
}
GIVEN = """
import torch
w = torch.nn.Parameter(torch.ones(4))
y = (w * 2).exp()
print(y.sum().item())
y.backward(torch.tensor([1.0, float("nan"), 1.0, 1.0]))
"""


def _judged(folder: Path, program: str) -> tuple[dict[str, Any], list[str]]:
    """The only finding of a recorded run, and what the program printed."""
    script, run = folder / "train.py", folder / "run"
    script.write_text(program)
    ran = adbg("run", "--batch", "--run-dir", str(run), "-e", "record on", script)
    assert ran.status == 0, str(ran)
    outcome = adbg("diagnose", "--json", run)
    (found,) = findings(outcome)
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=folder)
    return found, plain.stdout.split()


@on_frameworks()
def test_a_loss_that_is_nan_was_made_so_by_the_forward(framework: str, tmp_path: Path) -> None:
    found, printed = _judged(tmp_path, PROGRAMS[framework])
    assert [float(printed[at]) for at in (0, 1)] == [0, 0] and printed[2] == "nan"
    assert (found["kind"], found["severity"], found["backward"]) == ("nonfinite", "error", 3)
    assert found["node"] is None and found["cause"] is None, "no node of the backward is its origin"
    assert "NaN already when its backward began" in found["message"]
    assert "its root in train.py:8 had 1 NaN of 1 elements" in found["evidence"][0]
    assert "a consequence" in found["evidence"][1]
    (command,) = found["next"]
    assert command.startswith("adbg diagnose --only nonfinite ") and command.endswith("train.py")


@pytest.mark.torch
def test_a_gradient_that_backward_was_given_is_not_the_loss(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found, printed = _judged(tmp_path, GIVEN)
    assert "nan" not in printed
    assert "was given a gradient that is not finite" in found["message"]
    assert found["node"]["unique_name"] == "ExpBackward0#1"
