"""The Value panel of the real app on real torch: what it says of NaN, and which value it shows after an edit and after
a node ran."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.terminal import Terminal

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(180)

SCRIPT = """
import torch

values = torch.tensor([[0.0, 4.0], [1.0, 9.0]], requires_grad=True)
for iteration in range(2):
    loss = (values.sqrt() * torch.tensor([[0.0, 1.0], [1.0, 1.0]])).sum()
    loss.backward()
print("all done", flush=True)
"""
RUN = "import sys; from adbg.__main__ import main; sys.exit(main())"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def start(script: Path, *options: str, rows: int = 45, cols: int = 160) -> Terminal:
    return Terminal([sys.executable, "-c", RUN, "run", *options, str(script)], rows, cols, cwd=str(script.parent))


def test_the_norm_beside_nan_is_called_that_of_the_finite_elements_and_an_edit_is_seen(script: Path) -> None:
    with start(script, "-b", "nan") as terminal:
        text = terminal.wait_for(lambda t: "‖finite‖" in t and "NaN 1" in t)
        assert "4 Value  grad_inputs[0]" in text and "‖·‖" not in text
        terminal.send(":set grad_inputs[0] = torch.ones(2, 2)\r")
        text = terminal.wait_for(lambda t: "NaN 0" in t and "‖·‖ 2" in t)
        assert "4 Value  grad_inputs[0]" in text, "what was changed is shown"


def test_behind_a_node_the_panel_shows_what_the_node_made(script: Path) -> None:
    with start(script, "-b", "Sqrt") as terminal:
        terminal.wait_for("4 Value  grad_outputs[0]")
        terminal.send("a")
        terminal.wait_for("4 Value  grad_inputs[0]")
        terminal.send("s")
        terminal.wait_for("4 Value  grad_outputs[0]")


def test_at_the_end_of_a_backward_the_cursor_key_says_why_it_does_nothing(script: Path) -> None:
    with start(script, "-b", "backward-end") as terminal:
        text = terminal.wait_for(lambda t: "4 Value  saved" in t or "4 Value  grad_outputs[0]" in t)
        assert "· #4 " in text and "#5" not in text, "no node behind the last one is shown or told"
        terminal.send("t")
        terminal.wait_for("has run already: c continues to the next backward")


def test_the_number_of_the_console_zooms_it_too(script: Path) -> None:
    with start(script) as terminal:
        terminal.wait_for("backward 1 begins")
        terminal.send("5")
        terminal.wait_for("tab Complete")  # the keys of the console's line: it has the focus
        terminal.send("5")
        terminal.wait_for(lambda t: "5 Console" in t and "1 Graph" not in t)
        terminal.send("5")
        terminal.wait_for(lambda t: "5 Console" in t and "1 Graph" in t)
        terminal.send("p 5\r")
        terminal.wait_for("(adbg) p 5")


def test_enter_on_a_node_without_numbers_says_why(script: Path) -> None:
    with start(script, "-b", "Sqrt") as terminal:
        terminal.wait_for("4 Value  grad_outputs[0]")
        terminal.send("kk")
        terminal.wait_for(lambda text: "4 Value  grad_outputs" not in text)
        terminal.send("\r")
        terminal.wait_for("the gradients of #1 are gone")
