"""The real app on a real program in a real pseudo-terminal, seen through a terminal emulator: what a person gets."""

from __future__ import annotations

import signal
import sys
import time
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
for iteration in range(2):
    layer.zero_grad()
    hidden = layer(torch.ones(4, 3))
    loss = hidden.sin().sum()
    loss.backward()
    print("iteration", iteration, "bias", layer.bias.grad.tolist(), flush=True)
print("all done", flush=True)
"""
RUN = "import sys; from adbg.__main__ import main; sys.exit(main())"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def start(rows: int, cols: int, script: Path, *options: str, code: str = RUN) -> Terminal:
    command = [sys.executable, "-c", code, "run", *options, str(script)]
    return Terminal(command, rows, cols, cwd=str(script.parent))


def restored(terminal: Terminal, modes: list[object]) -> None:
    """The shell gets its terminal back: modes, main screen, cursor, no mouse reports."""
    assert terminal.modes() == modes
    raw = bytes(terminal.raw)
    assert raw.rfind(b"\x1b[?1049l") > raw.rfind(b"\x1b[?1049h") >= 0
    assert raw.rfind(b"\x1b[?25h") > raw.rfind(b"\x1b[?25l")
    assert raw.rfind(b"\x1b[?1000l") > raw.rfind(b"\x1b[?1000h")


def test_start_break_step_inspect_edit_resize_continue_quit(script: Path) -> None:
    with start(45, 160, script) as terminal:
        modes = terminal.modes()
        text = terminal.wait_for("backward 1 begins")
        terminal.wait_for(lambda t: "SumBackward0" in t or " Sum " in t)
        for title in ("1 Graph", "2 Log", "3 Source", "4 Value", "5 Console", "■ STOPPED"):
            assert title in text
        # a breakpoint by name, from the command line at the bottom
        terminal.send(":b Sin\r")
        terminal.wait_for("Breakpoints 1")
        terminal.send("c")  # `:` was for one command: the graph has the keys again
        terminal.wait_for(lambda t: "SinBackward0" in t.splitlines()[0] and "bp 1" in t.splitlines()[0])
        terminal.wait_for("hidden.sin().sum()")
        terminal.wait_for("f32 [4,2] cpu")
        # look at a value by name
        terminal.send(":p grad_outputs[0].shape\r")
        terminal.wait_for("torch.Size([4, 2])")
        # change what flows on
        terminal.send(":set grad_outputs[0] = grad_outputs[0] * 0\r")
        terminal.wait_for("edited")
        terminal.send("s")
        terminal.wait_for(lambda t: "Addmm" in t.splitlines()[0])
        assert "#3" in terminal.text.splitlines()[0]
        # a smaller window: one panel under the graph
        terminal.resize(24, 80)
        text = terminal.wait_for("[4 Value]")
        text = terminal.wait_for(lambda t: "Addmm" in t and "3 Source" in t and len(t.splitlines()) == 24)
        assert max(len(line) for line in text.splitlines()) <= 80
        terminal.send("3")
        terminal.wait_for("[3 Source]")
        terminal.wait_for("hidden = layer(")
        # to the end; the edit is in the parameter's gradient of the first iteration only
        terminal.send(":delete 1\r")
        terminal.wait_for("deleted: 1")
        terminal.wait_for("? Help  s Step")
        terminal.send("c")
        terminal.wait_for("EXITED 0")
        terminal.send("o")
        text = terminal.wait_for(lambda t: "Program output" in t and "all done" in t and "iteration 1 bias" in t)
        first = next(line for line in text.splitlines() if "iteration 0 bias" in line)
        assert "0.0, 0.0" in first or "-0.0, -0.0" in first
        second = next(line for line in text.splitlines() if "iteration 1 bias" in line)
        assert "0.0, 0.0" not in second
        terminal.send("\x1b")
        terminal.wait_for("EXITED 0")
        terminal.send("q")
        assert terminal.wait_end() == 0
        restored(terminal, modes)
        assert "Traceback" not in terminal.raw.decode("utf-8", "replace")


def test_quitting_a_stopped_program_asks_and_ends_it(script: Path) -> None:
    with start(24, 80, script, "-b", "Sin") as terminal:
        modes = terminal.modes()
        terminal.wait_for(lambda t: "SinBackward0" in t.splitlines()[0])
        terminal.send("q")
        terminal.wait_for("end the script and leave")
        terminal.send("n")
        terminal.wait_for(lambda t: "end the script and leave" not in t)
        terminal.send("q")
        terminal.wait_for("end the script and leave")
        terminal.send("y")
        assert terminal.wait_end() == 0
        restored(terminal, modes)
        assert b"all done" not in terminal.raw


def test_detaching_lets_the_program_end_on_the_plain_terminal(script: Path) -> None:
    with start(24, 80, script, "-b", "Sin") as terminal:
        modes = terminal.modes()
        terminal.wait_for(lambda t: "SinBackward0" in t.splitlines()[0])
        terminal.send("q")
        terminal.wait_for("detach")
        terminal.send("d")
        assert terminal.wait_end() == 0
        restored(terminal, modes)
        after = bytes(terminal.raw).rsplit(b"\x1b[?1049l", 1)[1]
        assert b"all done" in after


def test_writers_on_fd_2_do_not_touch_the_screen(script: Path) -> None:
    flood = (
        "import os, threading, time\n"
        "def write():\n"
        "    for n in range(200):\n"
        "        os.write(2, b'STRAY' * 20 + b'\\n'); os.write(1, b'OUT' * 20 + b'\\n'); time.sleep(0.02)\n"
        "threading.Thread(target=write, daemon=True).start()\n"
    )
    with start(45, 160, script, code=flood + RUN) as terminal:
        terminal.wait_for("bwd#1 begin")  # in the status bar: what the console says of it may scroll away at once
        terminal.send("s")
        text = terminal.wait_for(lambda t: "STRAYSTRAY" in t and "SumBackward0" in t)
        lines = text.splitlines()
        stray = [number for number, line in enumerate(lines) if "STRAY" in line]
        console = next(number for number, line in enumerate(lines) if "5 Console" in line)
        assert stray and min(stray) > console
        assert all(line.startswith("│") and line.endswith("│") for line in lines[console + 1 : -2])


def test_a_crash_of_the_screen_is_one_line_and_the_program_goes_on(script: Path) -> None:
    crash = (
        "import adbg.tui.app.panels.graph as g\n"
        "def fail(self, row, width): raise RuntimeError('made to fail')\n"
        "g.GraphPanel.line = fail\n"
    )
    with start(24, 80, script, code=crash + RUN) as terminal:
        modes = terminal.modes()
        assert terminal.wait_end() == 0
        after = bytes(terminal.raw).rsplit(b"\x1b[?1049l", 1)[1].decode()
        assert "the screen failed: RuntimeError: made to fail; details in " in after.replace("\r\n", "")
        assert "Traceback" not in after
        assert "all done" in after
        restored(terminal, modes)


def test_an_answer_or_a_key_that_fails_is_told_and_the_session_goes_on(script: Path) -> None:
    crash = (
        "import adbg.tui.app.stop_reader as r, adbg.tui.app.screens.main as k\n"
        "show, once = r.StopReader._show_graph, []\n"
        "def fail(self, anew):\n"
        "    if not once and self.debugger.stop.index: once.append(1); raise RuntimeError('answer failed')\n"
        "    show(self, anew)\n"
        "def key(self): raise RuntimeError('key failed')\n"
        "r.StopReader._show_graph = fail\n"
        "k.MainScreen.action_mark = key\n"
    )
    with start(45, 160, script, "-b", "Sin", code=crash + RUN) as terminal:
        terminal.wait_for("failed to show something: RuntimeError: answer failed; details in ")
        terminal.wait_for(lambda t: "SinBackward0" in t.splitlines()[0])
        terminal.send("m")
        terminal.wait_for("failed to show something: RuntimeError: key failed; details in ")
        terminal.send("s")
        terminal.wait_for(lambda t: "AddmmBackward0" in t.splitlines()[0] and "▶" in t)
        terminal.send("c")
        terminal.wait_for("iter 2")
        terminal.send("c")
        terminal.wait_for("EXITED 0")
        terminal.send("q")
        assert terminal.wait_end() == 0


def test_what_fails_again_and_again_ends_the_screen(script: Path) -> None:
    crash = (
        "import adbg.tui.app.screens.main as k\n"
        "def key(self): raise RuntimeError('key failed')\n"
        "k.MainScreen.action_mark = key\n"
    )
    with start(24, 80, script, "-b", "Sin", code=crash + RUN) as terminal:
        terminal.wait_for(lambda t: "SinBackward0" in t.splitlines()[0])
        terminal.send("mmmmmm")
        assert terminal.wait_end() == 0
        after = bytes(terminal.raw).rsplit(b"\x1b[?1049l", 1)[1].decode()
        assert "the screen failed: RuntimeError: key failed; details in " in after.replace("\r\n", "")
        assert "all done" in after


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_adbg_puts_the_terminal_back(script: Path, number: signal.Signals) -> None:
    with start(24, 80, script, "-b", "Sin") as terminal:
        modes = terminal.modes()
        terminal.wait_for(lambda t: "SinBackward0" in t.splitlines()[0])
        terminal.kill(number)
        assert terminal.wait_end() == 128 + number
        restored(terminal, modes)
        assert b"Traceback" not in terminal.raw


def test_the_full_prompt_keeps_what_is_typed_whatever_ctrl_c_is_pressed_for(script: Path) -> None:
    """Blocks of several lines, pastes, a step whose stop is shown; Ctrl-C never gives the keyboard back to the screen,
    where the next letters would step and quit."""

    with start(45, 160, script) as terminal:
        terminal.wait_for("backward 1 begins")
        terminal.send("!")
        terminal.wait_for(lambda text: "(adbg)" in text.partition("back to the screen")[2])
        terminal.send("ssc\x03")
        terminal.send("\x03p 40 + 2\r")
        text = terminal.wait_for("\n42")
        assert "1 Graph" not in text
        terminal.send("! for i in range(2):\r    print('line', i * 21)\r\r")
        terminal.wait_for("line 21")
        terminal.send("\x1b[200~p 6 * 7\np 50 +\x1b[201~ 5\r")
        terminal.wait_for("\n55")
        terminal.send("s\r")
        terminal.wait_for("node 1 of")
        terminal.send("! import time; time.sleep(100)\r")
        time.sleep(2.0)  # the program is in the statement
        terminal.send("\x03")
        terminal.wait_for("again within 2 s")
        terminal.send("\x03")
        terminal.wait_for("the command is interrupted")
        terminal.send("p 100 + 11\r")
        terminal.wait_for("\n111")
        terminal.send("\r")
        text = terminal.wait_for("1 Graph")
        assert "■ STOPPED" in text and "#1 " in text.splitlines()[0]


ASKING = """
import sys, time, torch
x = torch.ones(2, requires_grad=True)
name, age = input("name? "), input("age? ")
import getpass
print("got", name, age, len(getpass.getpass("secret? ")), flush=True)
time.sleep(float(sys.stdin.readline() or 0))
x.exp().sum().backward()
print("end of", name, flush=True)
"""


def test_what_a_waiting_program_asks_for_is_typed_without_a_key_for_it(tmp_path: Path) -> None:
    """And is neither a command, nor in the history, nor on the screen where the program hides it."""
    script = tmp_path / "ask.py"
    script.write_text(ASKING)
    with start(45, 160, script, "-b", "Exp") as terminal:
        terminal.wait_for("name?")
        terminal.wait_for(lambda t: "WAITS FOR INPUT" in t.splitlines()[0] and "input ▸" in t)
        terminal.send("quit\r")
        terminal.wait_for("age?")
        terminal.send("5\r")
        terminal.wait_for("secret?")
        time.sleep(1.0)
        terminal.send("hidden")
        terminal.wait_for("••••••")
        assert "hidden" not in terminal.text
        terminal.send("\r")
        terminal.wait_for("got quit 5 6")
        time.sleep(1.0)
        terminal.send(":p 6 * 7\r")  # refused while the program runs, as ever: a command of adbg's
        terminal.wait_for("the program is running")
        terminal.send("\x04")
        terminal.wait_for(lambda t: "STOPPED" in t.splitlines()[0] and "bp 1" in t.splitlines()[0])
        terminal.wait_for("(adbg) ")
        assert "input ▸" not in terminal.text
        terminal.send("s")  # the graph has the keys again
        terminal.wait_for(lambda t: "Accumulate" in t.splitlines()[0])
        terminal.send(":p 1\r")
        terminal.send("c")
        terminal.wait_for("end of quit")
