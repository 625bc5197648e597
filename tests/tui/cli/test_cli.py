"""The command line: what is adbg's and what the script's, front ends, usage errors, cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pytest import CaptureFixture
from support.patience import patience
from support.program import adbg, debuggee

from adbg.engine.errors import CommandError
from adbg.tui.cli import main as cli
from adbg.tui.cli import runs_text
from adbg.tui.cli.front_end import choose_front_end, startup_lines
from adbg.tui.cli.run import VALUED, Run, split_run, warn_of_own
from adbg.tui.cli.subcommand import USAGE, parser_of, summary


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("train.py --batch -b x", ([], "script", ["train.py", "--batch", "-b", "x"])),
        ("--batch -b Mm train.py -e c", (["--batch", "-b", "Mm"], "script", ["train.py", "-e", "c"])),
        (
            "--run-dir=x --no-record -m pkg.train -m y",
            (["--run-dir=x", "--no-record"], "module", ["pkg.train", "-m", "y"]),
        ),
        ("-mpkg a", ([], "module", ["pkg", "a"])),
        ("-c pass a b", ([], "code", ["pass", "a", "b"])),
        ("-b Mm -- torchrun -n 2 x.py", (["-b", "Mm"], "command", ["torchrun", "-n", "2", "x.py"])),
        ("-bMm x.py", (["-bMm"], "script", ["x.py"])),
        ("-b -- --", (["-b", "--"], "", [])),
        ("--batch", (["--batch"], "", [])),
        ("-m", (["-m"], "", [])),
        ("- a", ([], "script", ["-", "a"])),
    ],
)
def test_what_is_adbgs_and_what_the_scripts(words: str, wanted: tuple[list[str], str, list[str]]) -> None:
    assert split_run(words.split()) == wanted


def test_b_e_x_and_fail_on_keep_their_order(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "c"
    file.write_text("vlog 4\n")
    words = ["--batch", "-e", "one", "-b", "Mm", "-x", str(file), "--fail-on", "nan", "-e", "two"]
    startup = startup_lines(parser_of("run", Run()).parse_args(words), "batch")
    assert startup.lines == ["one", "break Mm", "vlog 4", "break nan", "two"]
    assert startup.required == {1, 3} and startup.failing == {3}


def test_every_option_that_takes_a_value_is_known_to_the_splitter() -> None:
    actions = [a for a in parser_of("run", Run())._actions if a.option_strings]
    valued = {name for a in actions if a.nargs is None and a.const is None for name in a.option_strings}
    assert valued - {"-m", "-c"} == VALUED


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "--json", "x.py"], "--json works with --batch only"),
        (["run", "--repl", "--timeout", "3", "x.py"], "--timeout works with --batch only"),
        (["run", "--batch", "--timeout", "-1", "x.py"], "above 0"),
        (["run", "--batch", "--"], "after --"),
        (["run", "--batch", "--", "no-such-program-here"], "cannot start"),
        (["run", "--batch", "-c"], "-c"),
        (["log"], "FILE"),
        (["runs", "delete"], "which run"),
        (["profile"], "the script is missing"),
        (["profile", "--with", "gprof", "x.py"], "unknown profiler 'gprof'"),
        (["profile", "--warmup", "3", "x.py"], "--warmup goes with --iterations"),
        (["profile", "--iterations", "0", "x.py"], "at least 1"),
        (["profile", "--iterations", "3", "--backward", "x.py"], "not allowed with"),
        ([], "usage"),
    ],
)
def test_usage_errors(words: list[str], wanted: str) -> None:
    outcome = adbg(*words)
    assert outcome.status == USAGE, str(outcome)
    assert wanted in outcome.stderr and "Traceback" not in outcome.stderr, str(outcome)
    assert outcome.stdout == ""


def test_no_screen_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    options = parser_of("run", Run()).parse_args([])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(CommandError, match="TERM='dumb'"):
        choose_front_end(options)
    monkeypatch.setenv("TERM", "xterm")
    assert choose_front_end(options) == "tui"


def test_a_defect_is_one_line_and_125(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Run, "run", lambda *a: {}["x"])
    assert cli.main(["run", "x.py"]) == cli.FAILED
    err = capsys.readouterr().err
    assert err.startswith("adbg: adbg itself failed: KeyError") and len(err.splitlines()) == 1


def test_help_and_version() -> None:
    shown = adbg("--help")
    assert shown.status == 0
    assert all(f"\n    {word} " in shown.stdout for word in cli.SUBCOMMANDS)
    assert "everything after the script" in adbg("run", "--help").stdout.lower()
    assert adbg("--version").stdout.startswith("adbg ")


@pytest.mark.parametrize("name", sorted(cli.SUBCOMMANDS))
def test_the_docstring_of_a_subcommand_is_its_help(name: str) -> None:
    command = cli.SUBCOMMANDS[name]
    first = summary(command)
    assert first and not first.endswith(".")
    text = " ".join(parser_of(name, command).format_help().split())
    assert text.startswith(f"usage: adbg {name} ") and first in text


def test_help_imports_neither_textual_nor_prompt_toolkit_nor_a_framework() -> None:
    code = (
        "import sys\nfrom adbg.tui.cli.main import main\nmain(['--help'])\n"
        "heavy = {'textual', 'prompt_toolkit', 'torch', 'networkx', 'psutil', 'pygments', 'sqlite3', 'asyncio'}\n"
        "bad = heavy & set(sys.modules)\n"
        "print('IMPORTED', sorted(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "IMPORTED []" in done.stdout, done.stdout + done.stderr


def test_batch_imports_neither_textual_nor_prompt_toolkit() -> None:
    code = (
        "import sys\nfrom adbg.tui.cli.main import main\nmain(['run', '--batch', '-b', 'x', '-c', 'pass'])\n"
        "bad = {'textual', 'prompt_toolkit', 'torch', 'networkx', 'pygments'} & set(sys.modules)\n"
        "print('IMPORTED', sorted(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "IMPORTED []" in done.stdout, done.stdout + done.stderr


def test_doctor() -> None:
    outcome = adbg("doctor", limit=180)
    assert outcome.status == 0 and "torch" in outcome.stdout, str(outcome)


def test_the_front_end_is_not_in_the_way_of_a_quick_script() -> None:
    """No fixed wait anywhere: a script that does nothing is over in a moment."""
    started = time.monotonic()
    assert adbg("run", "--batch", "--no-record", "-c", "pass").status == 0
    assert time.monotonic() - started < patience(10), "0.3 s on an idle machine"


def test_the_script_missing_names_the_closest() -> None:
    outcome = adbg("run", "--batch", str(debuggee("mlp")).replace("mlp.py", "mlpp.py"))
    assert outcome.status == 2 and "mlp.py" in outcome.stderr.replace("mlpp.py", "")


@pytest.mark.parametrize(
    ("kept", "listed", "shown"),
    [
        ({"code": None, "signal": 9, "asked": False}, "137", "exit status 137 (SIGKILL)"),
        ({"code": None, "signal": 2, "asked": True}, "130", "exit status 130 (SIGINT)"),
        ({"code": 3, "signal": None, "asked": False}, "3", "exit status 3\n"),
    ],
)
def test_runs_count_a_signal_as_a_shell_does(
    kept: dict[str, object], listed: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a run ends when its program did, not when a report was written behind it."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"argv": ["train.py"], "started": time.time() - 100, "ended": None}))
    (run / "exit.json").write_text(json.dumps(kept))
    os.utime(run / "exit.json", (time.time() - 40,) * 2)
    (run / "crash-r0.txt").write_text("told later")
    assert runs_text.show_list(str(tmp_path), False) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert listed in row and "60.0" in row
    runs_text.show_run("run", str(tmp_path))
    assert shown in capsys.readouterr().out


def test_an_option_behind_the_script_is_warned_of_on_a_terminal(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.argv[1:])  # --strict is its own\n")
    words = ["--json", "--strict", "-1", "-b", "nan"]
    warn_of_own(parser_of("run", Run()), words, str(script))
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in said] == ["--json", "-b"] and "adbg run -b … " in said[1]
    done = subprocess.run(
        [sys.executable, "-m", "adbg", "diagnose", str(script), *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert str(words) in done.stdout and "stands after" not in done.stderr, "no terminal: nothing of adbg's is added"
