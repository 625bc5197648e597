"""A capture in the real app, in a real pseudo-terminal: its region in Paddle's colours at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.terminal import Terminal

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import torch
layer = torch.nn.Linear(3, 2)
hidden = layer(torch.ones(4, 3))
loss = (hidden.sin() * 2).sum()
loss.backward()
"""
RUN = "import sys; from adbg.__main__ import main; sys.exit(main())"


def backgrounds(terminal: Terminal, name: str) -> set[str]:
    """Background colours of the letters of ``name`` where the screen has it first."""
    row = next((i for i, line in enumerate(terminal.screen.display) if name in line), None)
    if row is None:
        return set()
    column = terminal.screen.display[row].index(name)
    return {terminal.screen.buffer[row][column + i].bg.lower() for i in range(len(name))}


def test_the_rows_of_a_captured_region_are_coloured_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-c", RUN, "run", "--no-record", "train.py"]
    with Terminal(command, 45, 160, {"COLORTERM": "truecolor"}, str(tmp_path)) as terminal:
        terminal.wait_for("backward 1 begins")
        terminal.wait_for("Addmm")
        assert backgrounds(terminal, "Sin") != {"999999"}
        terminal.send(":capture train.py:5 as five\r")
        terminal.wait_for("five: nodes of train.py:5")
        terminal.wait_for(lambda _: backgrounds(terminal, "Sin") == {"999999"})
        terminal.wait_for(lambda _: backgrounds(terminal, "Addmm") == {"ffe4b5"})
        assert len(list((tmp_path / "adbg-captures" / "five").iterdir())) == 5
        terminal.send("c")  # the panel has the keys again
        terminal.wait_for("EXITED 0")
        terminal.send("q")
        assert terminal.wait_end() == 0
