"""F5 in the real app on a real program: what the report says is what the standard library reads from the same file."""

from __future__ import annotations

import io
import json
import pstats
import re
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
        terminal.wait_for(lambda text: "▏all" in text and "▏small" in text)  # cut where backward took most of the time
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


def test_f5_runs_a_node_again_until_it_is_given_up(tmp_path: Path) -> None:
    """What was measured until then is kept, and counted as the standard library counts it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-c", RUN, "run", "--run-dir", "run", "-b", "Sin*", "train.py"]
    with Terminal(command, 30, 100, {"COLORTERM": "truecolor"}, str(tmp_path)) as terminal:
        terminal.wait_for("Breakpoint 1, before SinBackward0")
        terminal.send("\x1b[15~")  # F5
        terminal.wait_for("this node, again and again")
        terminal.wait_for("Python and C functions")
        terminal.send("\t\t\x15node . --repeat 2000000000\r")
        terminal.wait_for(re.compile(r"[1-9][\d,]* of 2,000,000,000").search)
        terminal.send("\x1b")
        terminal.wait_for(lambda text: "Profile  001-cprofile" in text and "given up after" in text)
        folder = tmp_path / "run" / "profiles" / "001-cprofile"
        done = json.loads((folder / "meta.json").read_text())["iterations"]
        told = pstats.Stats(str(folder / "profile.pstats"), stream=io.StringIO())
        (node,) = ((key, row) for key, row in told.stats.items() if "SinBackward0" in key[2])  # type: ignore[attr-defined]
        assert (node[0][0].endswith("train.py"), node[0][1], node[1][1]) == (True, 11, done)
        terminal.send("q")
        terminal.wait_for(lambda text: "Profile  001" not in text)
