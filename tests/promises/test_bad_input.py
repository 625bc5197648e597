"""The promise "bad input gets one clear line": what happened, why, what next, the right exit status; no traceback."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import pytest
from support.frameworks import debuggee_of, node_of, on_frameworks, only
from support.program import Outcome, adbg, batch, commands, debuggee, own_lines, plain
from support.terminal import Terminal

USAGE, ADBG_FAILED, TIMED_OUT = 2, 125, 124


def complaint(outcome: Outcome) -> str:
    """The one line that adbg itself wrote to stderr; no traceback but the program's own."""
    own = [line for line in outcome.stderr.splitlines() if line.startswith("adbg: ")]
    assert len(own) == 1, str(outcome)
    assert not own_lines(outcome.stderr), str(outcome)
    return own[0]


# ------------------------------------------------------------------ the command line


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run"], "script"),
        (["run", "--no-such-option", "x.py"], "--no-such-option"),
        (["frobnicate"], "frobnicate"),
        (["run", "--batch", "--timeout", "soon", "x.py"], "soon"),
        (["run", "--batch", "--tui", "x.py"], "--tui"),
        (["attach", "not-a-pid"], "not-a-pid"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage(words: list[str], wanted: str) -> None:
    outcome = adbg(*words)
    assert outcome.status == USAGE, str(outcome)
    assert wanted in outcome.stderr, str(outcome)
    assert "Traceback" not in outcome.stderr, str(outcome)


def test_missing_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    outcome = adbg("run", "--batch", tmp_path / "trian.py")
    assert outcome.status == USAGE, str(outcome)
    line = complaint(outcome)
    assert "trian.py" in line
    assert "train.py" in line, "names the closest file"


def test_folder(tmp_path: Path) -> None:
    """A folder with a __main__.py is a program, as for python; another one is not, and the line says so."""
    program = tmp_path / "program"
    program.mkdir()
    outcome = adbg("run", "--batch", program)
    assert outcome.status == USAGE, str(outcome)
    assert "folder" in complaint(outcome)
    (program / "__main__.py").write_text("print(__name__)\n")
    assert adbg("run", "--batch", "--no-record", program).stdout == "__main__\n"


def test_not_python(tmp_path: Path) -> None:
    binary = tmp_path / "weights.bin"
    binary.write_bytes(bytes(range(256)) * 8)
    outcome = adbg("run", "--batch", binary)
    assert outcome.status == USAGE, str(outcome)
    assert "Python" in complaint(outcome)


def test_syntax_error(tmp_path: Path) -> None:
    """Nothing is started; the line names file and line, and shows it."""
    script = tmp_path / "broken.py"
    script.write_text("import torch\ndef f(:\n    pass\n")
    outcome = adbg("run", "--batch", script)
    assert outcome.status == USAGE, str(outcome)
    assert f"{script}:2" in complaint(outcome)
    assert "def f(:" in outcome.stderr


def test_module_missing() -> None:
    outcome = adbg("run", "--batch", "-m", "no_such_module_anywhere")
    assert outcome.status in (1, USAGE), str(outcome)
    assert "no_such_module_anywhere" in outcome.stderr
    assert not own_lines(outcome.stderr), str(outcome)


@on_frameworks()
def test_framework_missing(framework: str, tmp_path: Path) -> None:
    """A script whose framework is not installed fails as it would; adbg adds how to get it."""
    script = tmp_path / "train.py"
    script.write_text(f"import sys\nsys.modules['{framework}'] = None\nimport {framework}\n")
    outcome = adbg("run", "--batch", script)
    assert outcome.status == 1, str(outcome)
    assert "ModuleNotFoundError" in outcome.stderr or "ImportError" in outcome.stderr
    assert "adbg doctor" in complaint(outcome)


def test_no_framework_at_all(tmp_path: Path) -> None:
    """A program without any framework runs; that nothing could be seen is said in one line."""
    script = tmp_path / "hello.py"
    script.write_text("print('hello')\n")
    outcome = adbg("run", "--batch", "-b", "nan", script)
    assert outcome.status == 0, str(outcome)
    assert outcome.stdout == "hello\n"
    assert "torch" in complaint(outcome)


@only("torch", "that no backward was seen is the agent's word, the same for every framework")
def test_no_backward() -> None:
    outcome = batch("no_backward", "-b", "nan", json_lines=False)
    assert outcome.status == 0, str(outcome)
    assert outcome.stdout == "3.0\n"
    assert "backward" in complaint(outcome)


# ------------------------------------------------------------------ breakpoints and commands


@on_frameworks()
def test_breakpoint_that_matches_nothing(framework: str) -> None:
    """Kept, and said with the closest names, once a graph is there."""
    name = debuggee_of(framework, "mlp")
    outcome = batch(name, *commands("break backward", "continue", "break Adm*Backward", "break Thanh", "delete"))
    assert outcome.status == 0, str(outcome)
    texts = " ".join(str(line.get("text", "")) for line in outcome.of("result"))
    assert node_of(framework, "tanh") in texts, str(outcome)


@on_frameworks()
def test_breakpoint_that_never_matched(framework: str) -> None:
    """After the first backward and at the end of a run: which breakpoints matched nothing, and the closest names."""
    outcome = batch(debuggee_of(framework, "mlp"), "-b", "Thanh", json_lines=False)
    assert outcome.status == 0
    first, last = [line for line in outcome.stderr.splitlines() if line.startswith("adbg: ")]
    assert "matched nothing in this backward" in first and "was never hit" in last
    for line in (first, last):
        assert "Thanh" in line
        assert "Tanh" in line.replace("Thanh", "")


@pytest.mark.parametrize(
    "spec", ["", "Mm every", "Mm every 0", "Mm if", "Mm if x +", "#0", "#x", "model.py:", "module:", "Mm backward -1"]
)
def test_bad_spec(spec: str) -> None:
    """On the command line a usage error before anything starts; at the prompt an error line and the session goes on."""
    outcome = adbg("run", "--batch", "-b", spec, debuggee("mlp"))
    assert outcome.status == USAGE, str(outcome)
    assert outcome.stdout == ""
    complaint(outcome)


@on_frameworks()
def test_bad_commands(framework: str) -> None:
    """Each is one error line; the rest of the commands and the program go on."""
    bad = [
        "p nope",
        "p 1 +",
        "p grad_outputs[99]",
        "set grad_outputs[0] = 'text'",
        "set grad_outputs[0] = grad_outputs[0][:1]",
        "set grad_inputs[0] = grad_outputs[0]",
        "! raise ValueError('mine')",
        "break Mm every 0",
        "frobnicate",
        "info nothing",
        "frame 99",
        "until ][",
        "delete 77",
        "vlog loud",
        "dump graph /proc/nowhere",
        "condition 1 x +",
    ]
    name = debuggee_of(framework, "mlp")
    outcome = batch(name, "-b", "Tanh", "-e", "continue", *commands(*bad), "-e", "p 40 + 2")
    assert outcome.status == 0, str(outcome)
    failed = [line["command"] for line in outcome.of("error")]
    assert failed == bad, str(outcome)
    for line in outcome.of("error"):
        assert line["message"].strip()
        assert "Traceback" not in line["message"]
        assert "\n" not in line["message"].strip(), line
    assert outcome.of("result", command="p 40 + 2")[0]["value"] == 42
    assert outcome.digest == plain(name).digest


@on_frameworks()
def test_condition_that_raises(framework: str) -> None:
    """It stops there and shows the error: it never hides a hit."""
    outcome = batch(debuggee_of(framework, "mlp"), "-b", "Tanh if nope > 1", "-e", "continue", "-e", "delete")
    stops = outcome.of("stopped", reason="breakpoint")
    assert len(stops) == 1, str(outcome)
    assert "nope" in str(outcome.lines[outcome.lines.index(stops[0])]) + str(outcome.stdout)
    assert outcome.status == 0


def test_command_file(tmp_path: Path) -> None:
    outcome = adbg("run", "--batch", "-x", tmp_path / "missing.adbg", debuggee("mlp"))
    assert outcome.status == USAGE, str(outcome)
    assert "missing.adbg" in complaint(outcome)


def test_timeout(tmp_path: Path) -> None:
    script = tmp_path / "sleep.py"
    script.write_text("import time\ntime.sleep(60)\n")
    outcome = adbg("run", "--batch", "--timeout", "2", script)
    assert outcome.status == TIMED_OUT, str(outcome)
    assert "--timeout" in complaint(outcome)
    assert outcome.seconds < 60, "the script would end by itself"


# ------------------------------------------------------------------ terminals


@only("torch", "how a terminal is looked at has nothing to do with a framework")
@pytest.mark.parametrize("form", [[], ["--tui"], ["--repl"]], ids=["default", "tui", "repl"])
def test_no_terminal(form: list[str]) -> None:
    """Without a terminal and without ``--batch``: says so and how to go on; the program is not started."""
    outcome = adbg("run", *form, debuggee("mlp"))
    if form == ["--repl"] and outcome.status == 0:  # the line front end may well read its commands from a pipe
        assert "DIGEST" in outcome.stdout
        return
    assert outcome.status == USAGE, str(outcome)
    assert "--batch" in complaint(outcome)
    assert "iteration" not in outcome.stdout


@only("torch", "the size of a terminal has nothing to do with a framework")
def test_terminal_too_small() -> None:
    """The app says which size it needs, and comes up when it gets it."""
    command = [sys.executable, "-m", "adbg", "run", "-b", "Tanh", str(debuggee("mlp"))]
    with Terminal(command, 8, 30) as terminal:
        terminal.wait_for(lambda text: re.search(r"too small|larger|at least", text) is not None)
        terminal.resize(24, 80)
        terminal.wait_for("Graph")


# ------------------------------------------------------------------ the record


def check_unrecorded(outcome: Outcome, name: str) -> None:
    """Debugged as ever, and told in so many words that there is no record."""
    undisturbed = plain(name)
    assert outcome.status == undisturbed.status, str(outcome)
    assert outcome.of("stopped"), str(outcome)
    assert outcome.digest == undisturbed.digest
    assert "record" in outcome.stderr, str(outcome)
    assert "Traceback" not in outcome.stderr, str(outcome)


@on_frameworks()
def test_unwritable_run_directory(framework: str, tmp_path: Path) -> None:
    """Debugging goes on without a record, and says so."""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    name = debuggee_of(framework, "mlp")
    outcome = batch(name, "-b", "Tanh", "--run-dir", str(blocked / "run"), "-e", "continue", "-e", "delete")
    check_unrecorded(outcome, name)


@only("torch", "the record is written by the agent, the same for every framework")
@pytest.mark.parametrize(("name", "kilobytes"), [("mlp", 8), ("slow_training", 64)], ids=["at once", "on the way"])
def test_disk_full(name: str, kilobytes: int) -> None:
    """Files cannot grow any more: as on a full disk, and without one that would have to be filled."""

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))

    look = commands("vlog 6", "continue", "delete")
    check_unrecorded(batch(name, "-b", "Tanh", *look, preexec_fn=limit_files), name)
