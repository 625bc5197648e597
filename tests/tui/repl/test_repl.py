"""The line REPL as a person has it: the real command in a pty behind a terminal emulator, on real torch."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.program import alive, debuggee, wait_until
from support.terminal import Terminal

pytest.importorskip("torch")
PROMPT = "(adbg)"
Open = Callable[..., Terminal]


@pytest.fixture
def repl(tmp_path: Path) -> Iterator[Open]:
    """Opens REPLs, all closed at the end."""
    opened: list[Terminal] = []

    def start(script: str | Path, *options: str, source: str = "", rows: int = 40, cols: int = 120) -> Terminal:
        if source:
            script = tmp_path / str(script)
            script.write_text(source)
        one = Terminal([sys.executable, "-m", "adbg", "run", "--repl", *options, str(script)], rows, cols)
        opened.append(one)
        return one

    yield start
    for one in opened:
        one.close()


def prompts(terminal: Terminal) -> int:
    return sum(line.startswith(PROMPT) for line in terminal.text.splitlines())


def at_prompt(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and lines[-1].rstrip() == PROMPT


def say(terminal: Terminal, line: str) -> str:
    """Type a line and wait for the next empty prompt; what the screen shows then."""
    terminal.wait_for(at_prompt)  # what was said before is answered
    before = prompts(terminal)
    terminal.send(line + "\r")
    return terminal.wait_for(lambda text: prompts(terminal) > before and at_prompt(text))


def test_a_session(repl: Open) -> None:
    terminal = repl(debuggee("mlp"))
    text = terminal.wait_for(at_prompt)
    assert "backward 1 begins: 16 nodes" in text, "without a breakpoint there is something to see at once"
    assert "Breakpoint 1: Tanh (1 node of this graph)" in say(terminal, "b Tanh")
    text = say(terminal, "c")
    assert "Breakpoint 1, before TanhBackward0#1, node 7 of 16" in text and "norm" in text
    assert "[64, 32]" in say(terminal, "p list(grad_outputs[0].shape)")
    assert "node 8 of 16" in say(terminal, "s")
    assert "node 9 of 16" in say(terminal, ""), "an empty line steps again"
    assert "name 'nope' is not defined" in say(terminal, "p nope")
    say(terminal, "delete")
    text = say(terminal, "c")
    assert "DIGEST" in text and "The program exited with status 0." in text
    terminal.send("q\r")
    assert terminal.wait_end() == 0
    assert b"Traceback" not in terminal.raw


def test_statements_over_several_lines(repl: Open) -> None:
    terminal = repl(debuggee("mlp"))
    terminal.wait_for(at_prompt)
    terminal.send("! for i in range(2):\r")
    terminal.wait_for("...")
    terminal.send("    print('line', i * 21)\r")
    terminal.wait_for(lambda text: text.count("...") == 2)
    terminal.send("\r")
    text = terminal.wait_for(at_prompt)
    assert "line 0" in text and "line 21" in text
    assert "no breakpoint is set" in say(terminal, "commands"), "no lines are asked for in vain"


def test_commands_of_a_breakpoint_are_asked_for(repl: Open) -> None:
    terminal = repl(debuggee("mlp"))
    terminal.wait_for(at_prompt)
    say(terminal, "b Tanh")
    terminal.send("commands 1\r")
    terminal.wait_for("      >")
    terminal.send("p index * 6\r")
    terminal.wait_for(lambda text: text.count("      >") == 2)
    terminal.send("end\r")
    terminal.wait_for("breakpoint 1 runs: p index * 6")
    assert "\n42" in say(terminal, "c")


def test_tab_completes_names_of_this_graph(repl: Open) -> None:
    terminal = repl(debuggee("mlp"))
    terminal.wait_for(at_prompt)
    terminal.send("b Tanh\t")
    terminal.wait_for("b TanhBackward0")
    terminal.send("\x15")
    terminal.send("condi\t")
    terminal.wait_for("condition")


def test_the_programs_terminal_is_passed_through(repl: Open) -> None:
    source = (
        "import os, sys\nname = input('name? ')\nprint('hello', name, os.isatty(0), os.get_terminal_size().columns)\n"
    )
    terminal = repl("ask.py", "-b", "nan", source=source)
    terminal.wait_for("name?")
    terminal.send("bob\r")
    text = terminal.wait_for(at_prompt)
    assert "name? bob" in text and "hello bob True 120" in text
    assert "never imported a framework" in text
    terminal.send("q\r")
    assert terminal.wait_end() == 0


WAITING = """
import sys, time, torch
print("first:", input("name? "), flush=True)
time.sleep(1.5)
x = torch.ones(2, requires_grad=True)
x.exp().sum().backward()
print("second:", sys.stdin.readline().strip(), flush=True)
"""


def test_a_program_that_waits_for_input_says_so_once_and_its_question_stays(repl: Open) -> None:
    source = "a = input('name? ')\nb = input('age? ')\nprint('got', a, b)\n"
    terminal = repl("ask.py", "-b", "nan", source=source)
    terminal.wait_for("name?")
    terminal.wait_for(lambda text: "waits for input: type it here\nname?" in text)
    terminal.send("bob\r")
    terminal.wait_for("age?")
    time.sleep(1)
    terminal.send("7\r")
    text = terminal.wait_for(at_prompt)
    assert "\nname? bob\nage? 7\ngot bob 7" in text and text.count("waits for input") == 1


def test_what_is_typed_ahead_is_run_at_the_prompt_and_what_the_program_asks_for_is_its_own(repl: Open) -> None:
    terminal = repl("ask.py", "-b", "Exp", source=WAITING)
    text = terminal.wait_for("name?")
    said = "".join(text.split())  # the path's length decides where the line is wrapped
    assert "stopsatthefirstbreakpointthatishit,Ctrl-Cpausesit" in said
    terminal.send("bob\r")
    terminal.wait_for("first: bob")
    terminal.send("p 6 * 7\rwhatx\x7f\rp 1 +")
    text = terminal.wait_for(lambda text: "(adbg) p 6 * 7" in text and text.rstrip().endswith("(adbg) p 1 +"))
    assert "\n42" in text and "unknown command 'what'" in text
    terminal.send(" 10\r")
    terminal.wait_for(lambda text: "\n11" in text)
    terminal.send("c\r")
    terminal.send("ann\r")
    text = terminal.wait_for(lambda text: "second:" in text and at_prompt(text))
    assert "second: ann" in text and "unknown command 'ann'" not in text


def test_ctrl_c_pauses_at_the_next_node(repl: Open) -> None:
    terminal = repl(debuggee("slow_training"), "-b", "nan", "--no-record")
    terminal.wait_for(lambda text: "iteration" in text.lower() or "loss" in text)
    terminal.send("\x03")
    text = terminal.wait_for(at_prompt)
    assert "pausing at the next node" in text and "Paused, before" in text


def test_a_second_ctrl_c_is_the_programs(repl: Open) -> None:
    source = (
        "import time\nprint('ready', flush=True)\n"
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('interrupted')\n    raise SystemExit(9)\n"
    )
    terminal = repl("wait.py", "-b", "nan", source=source)
    terminal.wait_for("ready")
    terminal.send("\x03")
    terminal.wait_for("pausing")
    terminal.send("\x03")
    text = terminal.wait_for(at_prompt)
    assert "interrupted" in text and "exited with status 9" in text
    terminal.send("\x04")
    assert terminal.wait_end() == 9


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.3], ids=["at once", "50 ms", "300 ms"])
def test_two_ctrl_c_do_not_end_a_program_that_pauses(repl: Open, pause: float) -> None:
    """Wherever the second one comes: before the stop, while it is printed, or at the prompt."""
    terminal = repl(debuggee("slow_training"), "-b", "nan", "--no-record")
    terminal.wait_for(lambda text: "iteration" in text.lower() or "loss" in text)
    terminal.send("\x03")
    time.sleep(pause)
    terminal.send("\x03")
    terminal.wait_for(lambda text: "Paused, before" in text and at_prompt(text))
    terminal.send("\x03")
    assert "[" in say(terminal, "p list(grad_outputs[0].shape)"), "it still stands there"
    assert "exited" not in terminal.text and "Interrupt" not in terminal.text


def test_output_comes_while_the_prompt_stands(repl: Open) -> None:
    source = (
        "import time, torch\nw = torch.ones(2, requires_grad=True)\nw.sum().backward()\n"
        "for i in range(3):\n    time.sleep(0.2); print('tick', i, flush=True)\n"
    )
    terminal = repl("tick.py", source=source)
    terminal.wait_for(at_prompt)
    terminal.send("c &\r")
    terminal.wait_for("The program exited with status 0.")
    text = terminal.wait_for(at_prompt)
    assert [line for line in text.splitlines() if line.startswith("tick")] == ["tick 0", "tick 1", "tick 2"]


@pytest.mark.parametrize(("answer", "ends"), [("y", True), ("n", False), ("yclear", False)])
def test_quitting_asks_while_a_program_is_there(repl: Open, answer: str, ends: bool) -> None:
    terminal = repl(debuggee("mlp"))
    terminal.wait_for(at_prompt)
    terminal.send("\x04")
    terminal.wait_for("End it?")
    before = prompts(terminal)
    terminal.send(answer + "\r")
    if ends:
        assert terminal.wait_end() == 0
    else:
        terminal.wait_for(lambda text: prompts(terminal) > before and at_prompt(text))
        assert "node 1 of 16" in say(terminal, "s")


def test_detaching_on_leaving_lets_it_run_to_its_end(repl: Open, tmp_path: Path) -> None:
    done = tmp_path / "done"
    source = (
        "import os, torch\nw = torch.ones(2, requires_grad=True)\nprint('PID', os.getpid(), flush=True)\n"
        f"w.sum().backward()\nopen({str(done)!r}, 'w').write(str(w.grad.sum().item()))\n"
    )
    terminal = repl("run.py", source=source)
    terminal.wait_for(at_prompt)
    terminal.send("q\r")
    terminal.wait_for("End it?")
    terminal.send("d\r")
    assert terminal.wait_end() == 0
    wait_until(lambda: done.exists() and done.read_text() == "2.0", "the program went on")


def test_the_terminal_hangs_up(repl: Open, tmp_path: Path) -> None:
    """Nothing of adbg stays behind, and the program goes on."""
    done = tmp_path / "done"
    source = (
        f"import os, time\nprint('PID', os.getpid(), flush=True)\ntime.sleep(5)\nopen({str(done)!r}, 'w').close()\n"
    )
    terminal = repl("wait.py", "-b", "nan", source=source)
    text = terminal.wait_for(lambda text: bool(re.search(r"PID \d+\s", text)))
    pid = int(text.split("PID", 1)[1].split()[0])
    terminal.hang_up()
    wait_until(lambda: not alive(terminal.pid), "the REPL ended", 15)
    assert alive(pid)
    wait_until(done.exists, "the program came to its end", 20)


def test_a_signal_ends_the_repl_when_no_program_is_there(repl: Open) -> None:
    terminal = repl("hello.py", "-b", "nan", source="print('hello')\n")
    terminal.wait_for(at_prompt)
    terminal.kill(signal.SIGTERM)
    assert terminal.wait_end(20) == 143


def test_history_is_kept_and_private(repl: Open, adbg_home: Path) -> None:
    terminal = repl(debuggee("mlp"))
    terminal.wait_for(at_prompt)
    say(terminal, "p 40 + 2")
    terminal.send("\x04")
    terminal.wait_for("End it?")
    terminal.send("y\r")
    terminal.wait_end()
    path = adbg_home / "state" / "adbg" / "history"
    assert "p 40 + 2" in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    second = repl(debuggee("mlp"))
    second.wait_for(at_prompt)
    second.send("\x1b[A")
    second.wait_for("(adbg) p 40 + 2")


def test_the_terminal_is_as_it_was(repl: Open) -> None:
    terminal = repl(debuggee("mlp"), "-b", "Tanh")
    before = terminal.modes()
    terminal.wait_for(at_prompt)
    say(terminal, "s")
    terminal.send("\x04")
    terminal.wait_for("End it?")
    terminal.send("y\r")
    terminal.wait_end()
    assert terminal.modes() == before


def test_restart(repl: Open) -> None:
    terminal = repl(debuggee("mlp"), "-b", "Tanh backward 2")
    assert "of backward 2" in terminal.wait_for(at_prompt)
    text = say(terminal, "restart")
    assert text.count("node 7 of 16 of backward 2") == 2
    assert "killed" not in text and "no agent came up" not in text and "never imported" not in text
    assert "hits" in say(terminal, "i br")


def test_what_is_typed_behind_continue_is_the_programs_and_what_it_left_the_prompts(repl: Open) -> None:
    """All in one write, as a paste: the program asks once, and ends."""
    terminal = repl("ask.py", "-b", "Exp", source=WAITING)
    terminal.wait_for("name?")
    terminal.send("bob\r")
    terminal.wait_for(at_prompt)
    terminal.send("c\rann\rp 6 * 7\rinfo breakp")
    text = terminal.wait_for(lambda text: text.rstrip().endswith("(adbg) info breakp"))
    assert "second: ann" in text and "The program exited with status 0." in text
    assert "(adbg) p 6 * 7\n" in text and "unknown command 'ann'" not in text


def test_pasted_lines_run_one_after_the_other(repl: Open) -> None:
    """A step in between is waited for, a block is one command, and what has no line end yet can be finished."""
    terminal = repl(debuggee("mlp"))
    terminal.wait_for(at_prompt)
    pasted = "p 40 + 2\ns\n! for i in range(2):\n    print('line', i * 21)\ns\np 50 +"
    terminal.send(f"\x1b[200~{pasted}\x1b[201~ 5\r")
    text = terminal.wait_for("\n55")
    assert "\n42" in text and "\nline 0\nline 21" in text and "node 2 of 16" in text
    assert "SyntaxError" not in text and "running" not in text


def test_a_colon_in_front_of_a_command_means_nothing(repl: Open) -> None:
    terminal = repl(debuggee("mlp"))
    terminal.wait_for(at_prompt)
    assert "\n42" in say(terminal, ":p 40 + 2")
