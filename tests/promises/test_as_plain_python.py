"""A program under ``adbg run`` finds the world that plain Python gives it: modules, streams, width, status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import only_here
from support.program import LIMIT, Outcome, adbg, batch, commands, debuggee, digest_of, marked, plain
from support.terminal import Terminal

pytestmark = only_here("torch", "launching, streams and attaching are the same for every framework")


def test_own_modules() -> None:
    """A script whose folder has an ``engine.py`` and a ``tui/`` of its own, while adbg's stop in its backward."""
    outcome = batch("own_modules/main", *commands("break Pow*", "continue", "p 1 + 1", "step", "delete"))
    assert outcome.status == 0, str(outcome)
    assert outcome.digest == plain("own_modules/main").digest
    (stop,) = outcome.of("stopped", reason="breakpoint")
    assert stop["forward"]["file"].endswith("own_modules/engine.py")


def test_standard_input_and_status() -> None:
    """The program reads what is piped into adbg, to the end of file, and its status is adbg's."""
    outcome = batch("stdin_reader", "-b", "NoSuchNodeAnywhere", input="0.5\n1.5\n2.5\n")
    assert outcome.status == 3, str(outcome)
    assert outcome.digest == plain("stdin_reader", input="0.5\n1.5\n2.5\n").digest
    assert len(outcome.of("backward", phase="begin")) == 3


def test_progress_bar_in_a_terminal() -> None:
    """On a terminal all three streams are one, and a bar has the width of the window."""
    command = [sys.executable, "-m", "adbg", "run", "--repl", "-e", "continue", str(debuggee("progress_bar"))]
    with Terminal(command, 30, 100) as terminal:
        terminal.wait_for("DIGEST")
        text = terminal.text
    assert "tty True True True" in text
    bar = next(line for line in text.splitlines() if "20/20" in line)
    assert bar.count("#") == 100 - 20, "the bar's width is the window's"
    assert "1/20" not in text.replace("11/20", ""), "carriage returns redraw the line"


def test_module_and_code(tmp_path: Path) -> None:
    """``-m`` and ``-c`` as python has them."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "__main__.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    outcome = adbg("run", "--batch", "-m", "package", "--epochs", "3", cwd=tmp_path)
    assert outcome.stdout == "__main__ package ['--epochs', '3']\n", str(outcome)
    outcome = adbg("run", "--batch", "-c", "import sys; print(__name__, sys.argv)", "-b", "x", cwd=tmp_path)
    assert outcome.stdout == "__main__ ['-c', '-b', 'x']\n", str(outcome)


def test_signal_reaches_the_program(tmp_path: Path) -> None:
    """SIGTERM at adbg is SIGTERM at the program, which may have a handler for it."""
    script = tmp_path / "careful.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: (print('saved', flush=True), sys.exit(11)))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "adbg", "run", "--batch", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "saved\n"
        assert process.wait(LIMIT) == 11


def test_launcher_behind_a_dash(tmp_path: Path) -> None:
    """``adbg run -- COMMAND`` follows the Python that a shell script starts."""
    launcher = tmp_path / "launch.sh"
    launcher.write_text(f"#!/bin/sh\necho from the launcher\nexec {sys.executable} {debuggee('mlp')}\n")
    launcher.chmod(0o755)
    outcome = adbg("run", "--batch", "--json", "-b", "Tanh", *commands("continue", "delete"), "--", launcher)
    assert outcome.status == 0, str(outcome)
    assert "from the launcher" in outcome.program_output
    assert len(outcome.of("stopped")) == 1, str(outcome)
    assert outcome.digest == plain("mlp").digest


# ------------------------------------------------------------------ breakpoint() in a script


def stops_at(outcome: Outcome, marker: str) -> None:
    (stop,) = outcome.of("stopped")
    assert stop["phase"] == "python"
    assert stop["location"]["line"] in (marked("breakpoint_line", marker), marked("breakpoint_line", marker) + 1)


def test_breakpoint_in_a_script() -> None:
    """It stops at that line, with the locals there and the graph that the tensors have so far."""
    look = commands("continue", "p sorted(k for k in locals())", "p hidden.shape", "info graph", "up", "p weight.sum()")
    outcome = batch("breakpoint_line", *look)
    assert outcome.status == 0, str(outcome)
    stops_at(outcome, "adbg_breakpoint")
    assert "hidden" in str(outcome.of("result", command="p sorted(k for k in locals())"))
    (graph,) = outcome.of("result", command="info graph")
    assert {row["name"] for row in graph["value"]["rows"]} >= {"SinBackward0", "MulBackward0"}
    assert not outcome.of("error"), str(outcome)
    assert outcome.digest == plain("breakpoint_line").digest


def test_builtin_breakpoint() -> None:
    outcome = batch("breakpoint_line", *commands("continue", "continue"), arguments=["--builtin"])
    assert outcome.status == 0, str(outcome)
    assert len(outcome.of("stopped")) == 2, str(outcome)


def test_breakpoint_outside_adbg() -> None:
    """Nothing happens, and that is said once."""
    outcome = plain("breakpoint_line")
    assert outcome.status == 0, str(outcome)
    assert outcome.stderr.count("adbg") >= 1
    assert len(outcome.stderr.strip().splitlines()) == 1, str(outcome)


# ------------------------------------------------------------------ attach


def test_attach(tmp_path: Path) -> None:
    """A program that listens is stopped, looked at, let go; it ends as if nobody had come."""
    finish = tmp_path / "finish"
    command = [sys.executable, str(debuggee("listening")), str(finish)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().split()[1]
        look = commands("break Sin*", "continue", "p grad_outputs[0].shape", "step", "detach")
        outcome = adbg("attach", "--batch", "--json", *look, pid)
        finish.touch()
        output, errors = process.communicate(timeout=LIMIT)
    assert outcome.status == 0, str(outcome)
    # The program runs while adbg attaches: the breakpoint may stop it once before `continue` is read.
    assert [stop["reason"] for stop in outcome.of("stopped")][-2:] == ["breakpoint", "step"], str(outcome)
    assert process.returncode == 0, errors
    assert len(digest_of(output)) == 64


def test_attach_to_nobody() -> None:
    for pid, wanted in ((str(os.getpid()), "started this adbg"), ("999999999", "999999999")):
        outcome = adbg("attach", "--batch", pid)
        assert outcome.status == 2, str(outcome)
        assert wanted in outcome.stderr, str(outcome)
        assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize("name", ["mlp", "nested_function"])
def test_recorded_run_is_listed(name: str) -> None:
    """What was run is in ``adbg runs``, also after a crash of the program."""
    assert batch(name, "-b", "NoSuchNodeAnywhere").status == 0
    listed = adbg("runs")
    assert listed.status == 0, str(listed)
    assert f"{name}.py" in listed.stdout, str(listed)
