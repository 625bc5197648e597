"""The log and the graph of the real app in a real pseudo-terminal: a record selects its node, a node its record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.frameworks import node_of, on_frameworks
from support.terminal import Terminal

pytestmark = pytest.mark.timeout(180)
SELECTED = ("2b3344", "20242e")  # theme.SELECTED and SELECTED_DIM, as pyte has them

TORCH = """
import torch

class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp().tanh().tanh()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            leaf.exp().tanh().tanh().backward(grad)
        return leaf.grad

Outer.apply(torch.ones(3, requires_grad=True) * 0.5).tanh().sum().backward()
print("all done", flush=True)
"""
PADDLE = """
import paddle

class Outer(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp().tanh().tanh()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensor()
        with paddle.enable_grad():
            leaf = x.detach()
            leaf.stop_gradient = False
            paddle.autograd.backward([leaf.exp().tanh().tanh()], [grad])
        return leaf.grad

start = paddle.ones([3])
start.stop_gradient = False
Outer.apply(start * 0.5).tanh().sum().backward()
print("all done", flush=True)
"""


def selected(terminal: Terminal, *titles: str) -> str:
    """The line with the cursor's bar in the panel whose frame has one of these titles."""
    display = terminal.screen.display
    for top, line in enumerate(display):
        title = next((title for title in titles if title in line and "╭" in line), "")
        if not title:
            continue
        left = line.rindex("╭", 0, line.index(title)) + 1
        right = line.index("╮", left)
        for row in range(top + 1, terminal.screen.lines):
            if terminal.screen.buffer[row][left].bg in SELECTED:
                return display[row][left:right]
            if display[row][left - 1] == "╰":
                return ""
    return ""


def in_graph(terminal: Terminal) -> str:
    return selected(terminal, "1 Graph")


def in_log(terminal: Terminal) -> str:
    return selected(terminal, "2 VLOG", "2 Log")


@on_frameworks()
@pytest.mark.parametrize("size", [(45, 160), (24, 80)], ids=str)
def test_a_record_selects_its_node_and_a_node_its_record(framework: str, size: tuple[int, int], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCH if framework == "torch" else PADDLE)
    command = [sys.executable, "-m", "adbg", "run", "-b", "Exp", "-e", "vlog 4", str(script)]
    tanh, exp = node_of(framework, "tanh"), node_of(framework, "exp")
    with Terminal(command, *size, env={"COLORTERM": "truecolor"}, cwd=str(tmp_path)) as terminal:
        terminal.wait_for(lambda t: exp in t.splitlines()[0])
        terminal.wait_for(lambda t: "Exp" in in_graph(terminal))
        terminal.send("2")
        terminal.wait_for(f"before {exp}")  # the stop itself is in the log
        # the first Tanh of the log ran in the backward around: no node of this graph
        terminal.send("/")
        terminal.wait_for("N next, P previous match")
        terminal.send(f"{tanh}.*Preparing\r")
        terminal.wait_for(lambda _: f"{tanh}(" in in_log(terminal))
        outer = in_log(terminal)
        assert " 3  " in in_graph(terminal)
        # from a record to its node: the last Tanh of the nested backward, then the one before it
        terminal.send("P")
        terminal.wait_for(lambda _: " 2  " in in_graph(terminal) and f"{tanh}(" in in_log(terminal) != outer)
        assert "Tanh" in in_graph(terminal)
        second = in_log(terminal)
        terminal.send("P")
        terminal.wait_for(lambda _: " 1  " in in_graph(terminal) and f"{tanh}(" in in_log(terminal) != second)
        terminal.send("P")
        terminal.wait_for(lambda _: in_log(terminal) == outer)
        assert " 1  " in in_graph(terminal)
        # from a node to its record
        terminal.send("1")
        terminal.send("j")
        terminal.wait_for(lambda _: in_log(terminal) == second)
        terminal.send("j")
        terminal.wait_for(lambda _: f"{exp}(" in in_log(terminal) and "Preparing" in in_log(terminal))
        terminal.send("c")
        terminal.wait_for("EXITED 0")
        terminal.send("q")
        assert terminal.wait_end() == 0


@on_frameworks()
@pytest.mark.parametrize("size", [(45, 160), (24, 80)], ids=str)
def test_stops_go_from_a_long_graph_into_a_short_one_and_back(
    framework: str, size: tuple[int, int], tmp_path: Path
) -> None:
    """The cursor is far down in a graph; the next stop is in a nested one that has not as many lines."""
    body = TORCH if framework == "torch" else PADDLE
    short, long = " * 0.5).tanh().sum()", f" * 0.5){'.tanh()' * 12}.sum()"
    assert short in body
    script = tmp_path / "train.py"
    script.write_text(body.replace(short, long))
    outer = "OuterBackward" if framework == "torch" else "GradNodePyLayer_Outer"
    command = [sys.executable, "-m", "adbg", "run", "-b", outer, "-b", "Exp", str(script)]
    for keys in ("s", "c", "2s", "3s"):
        with Terminal(command, *size, env={"COLORTERM": "truecolor"}, cwd=str(tmp_path)) as terminal:
            terminal.wait_for(lambda t: outer in t.splitlines()[0])
            terminal.wait_for(lambda _: " 14  " in in_graph(terminal))
            terminal.send(keys)
            terminal.wait_for(lambda t: "depth 1" in t.splitlines()[0] and "/4" in t.splitlines()[0], 30)
            terminal.wait_for(lambda _: in_graph(terminal) != "", 30)
            if keys != "c":
                terminal.send("c")
            terminal.wait_for(lambda t: "#3" in t.splitlines()[0] and "Exp" in t.splitlines()[0], 30)
            terminal.send("jjjc")
            terminal.wait_for("EXITED 0", 30)
            terminal.send("q")
            assert terminal.wait_end() == 0
            assert b"failed to show" not in terminal.raw


@pytest.mark.torch
def test_a_search_and_what_follows_it_in_one_write(tmp_path: Path) -> None:
    """Keys typed faster than the screen follows: each has the effect it has when typed slowly."""
    script = tmp_path / "train.py"
    script.write_text(TORCH)
    command = [sys.executable, "-m", "adbg", "run", "-b", "Exp", "-e", "vlog 4", str(script)]
    with Terminal(command, 45, 160, env={"COLORTERM": "truecolor"}, cwd=str(tmp_path)) as terminal:
        terminal.wait_for(lambda _: "Exp" in in_graph(terminal))
        terminal.send("2")
        terminal.wait_for("before ExpBackward0")
        assert b"\x1b[?2026h" in terminal.raw  # the emulator is one that takes whole frames
        terminal.send("/TanhBackward0.*Preparing\rPP1j")
        terminal.wait_for(lambda _: " 2  " in in_graph(terminal))
        terminal.wait_for(lambda _: "│ │ │ ▾ TanhBackward0(#2) Preparing" in in_log(terminal))
        # enter on a record that is a line and no more goes to its node: the keys behind it are the graph's
        terminal.send("2j\rj")
        terminal.wait_for(lambda _: " 3  " in in_graph(terminal))
        terminal.send(":p 6 * 7\r")
        terminal.wait_for("│42 ")
        terminal.send("?")  # `:` was for one command: the panel before has the keys again
        terminal.wait_for("esc")
        terminal.send("\x1b")
        terminal.wait_for(lambda text: "1 Graph" in text)
        terminal.send("oi")
        terminal.wait_for("Program output")
        terminal.send("\x1b\x1b")
        terminal.wait_for(lambda text: "1 Graph" in text)
        terminal.send("c")
        terminal.wait_for("EXITED 0")
        terminal.send("q")
        assert terminal.wait_end() == 0
