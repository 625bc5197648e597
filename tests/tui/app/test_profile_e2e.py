"""F5 in the real app on a real program: what the report says is what the standard library reads from the same file."""

from __future__ import annotations

import io
import pstats
import sys
from pathlib import Path

import pytest
from support.terminal import Terminal

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)

SCRIPT = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
layer = torch.nn.Linear(3, 2)


def small_steps(hidden):
    for _ in range(40):
        hidden = hidden.sin()
    return hidden


for iteration in range(16):
    layer.zero_grad()
    small_steps(layer(torch.ones(4, 3))).sum().backward()
print("all done", float(layer.bias.grad.sum()), flush=True)
"""
RUN = "import sys; from adbg.__main__ import main; sys.exit(main())"


def test_f5_to_the_report_and_from_there_to_the_source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-c", RUN, "run", "--run-dir", "run", "train.py"]
    with Terminal(command, 45, 160, {"COLORTERM": "truecolor"}, str(tmp_path)) as terminal:
        terminal.wait_for("backward 1 begins")
        terminal.send("\x1b[15~")  # F5
        terminal.wait_for("Python and C functions")
        terminal.wait_for("(adbg) profile cprofile 10 iterations")
        terminal.send("\r")
        terminal.wait_for("profile cprofile: waits (F5)")
        terminal.wait_for(lambda text: "enter start" not in text)
        terminal.send("c")
        terminal.wait_for(lambda text: "▏all" in text and "▏small_steps" in text)
        folder = tmp_path / "run" / "profiles" / "001-cprofile"
        told = pstats.Stats(str(folder / "profile.pstats"), stream=io.StringIO())
        calls = told.total_calls  # type: ignore[attr-defined]
        assert f"{calls:,} calls of" in terminal.text
        sines = next(row[1] for key, row in told.stats.items() if "'sin'" in key[2])  # type: ignore[attr-defined]
        terminal.send("\t")
        terminal.wait_for("▾self")
        terminal.send("/'sin'\r")
        terminal.wait_for(f"calls {sines:,} ·")
        terminal.send("/small_steps\r")
        assert sines == 400, "ten iterations"
        terminal.wait_for("calls 10 ·")
        terminal.send("o")
        terminal.wait_for(lambda text: "3 Source  train.py:9" in text and "Profile  001" not in text)
