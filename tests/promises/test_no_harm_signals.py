"""No harm, where the script itself makes it easy: SIGPIPE back at its default; errors that come again and again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import LIMIT, run, wait_until

pytest.importorskip("torch")

SIGPIPE = """
import signal, sys, time, torch
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as many command line scripts do
w = torch.ones(3, requires_grad=True)
open(sys.argv[1], "w").write("started")
end = time.time() + 3
while time.time() < end:
    (w * 2).sum().backward()
sys.exit(5)
"""

FAILS_OFTEN = """
import torch

def once():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    z = (y * 2).sum()
    y.add_(1)
    try:
        z.backward()
    except RuntimeError:
        pass

for _ in range(30):
    once()
"""


@pytest.mark.parametrize("turn", range(3))
def test_a_dead_front_end_sends_no_sigpipe(tmp_path: Path, turn: int) -> None:
    script, started, folder = tmp_path / "script.py", tmp_path / "started", tmp_path / "run"
    script.write_text(SIGPIPE)
    options = ["--run-dir", str(folder), "-b", "NoSuchNode"]  # armed: every backward is announced
    process = subprocess.Popen([sys.executable, "-m", "adbg", "run", "--batch", *options, str(script), str(started)])
    try:
        wait_until(started.exists, "the script's start", LIMIT)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT)
    wait_until((folder / "exit.json").exists, "the program's end", LIMIT)
    ended = json.loads((folder / "exit.json").read_text())
    assert (ended["code"], ended["signal"]) == (5, None)


def test_every_one_of_many_equal_errors_stops(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FAILS_OFTEN)
    continues = [word for _ in range(30) for word in ("-e", "continue")]
    command = [sys.executable, "-m", "adbg", "run", "--batch", "--json", "--no-record", *continues, str(script)]
    lines = [json.loads(line) for line in run(command).stdout.splitlines()]
    assert [line["reason"] for line in lines if line["type"] == "stopped"] == ["error"] * 30
