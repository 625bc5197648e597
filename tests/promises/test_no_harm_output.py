"""The promise "no harm" where adbg itself cannot write: a full disk, a reader that went away, no stdout at all. The
program runs to its end, and its status is adbg's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import only_here
from support.patience import patience
from support.program import LIMIT

pytestmark = only_here("torch", "what adbg's own output goes to is the same for every framework")
PROGRAM = """
import sys, time
for number in range(20):
    print("line", number, flush=True)
    print("error line", number, file=sys.stderr, flush=True)
    time.sleep(0.005)
open(sys.argv[1], "w").write("to its end")
raise SystemExit(5)
"""
WAYS = {
    "stdout full": "> /dev/full",
    "stderr full": "2> /dev/full",
    "both full": "> /dev/full 2> /dev/full",
    "reader gone": "| head -1 > /dev/null",
    "no reader": "| true",
    "no stdout": ">&-",
    "no stdout, no stderr": ">&- 2>&-",
    "nothing at all": ">&- 2>&- <&-",
}


def shell(command: str, *words: object) -> int:
    """The status of the command before a pipe, if there is one."""
    script = f'"$@" {command}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *map(str, words)], input="continue\n", text=True, timeout=patience(LIMIT)
    )
    return done.returncode


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("front", [["--batch"], ["--batch", "--json"], ["--repl"]], ids=" ".join)
def test_a_run_ends_by_itself(front: list[str], way: str, tmp_path: Path) -> None:
    script, finished = tmp_path / "program.py", tmp_path / "finished"
    script.write_text(PROGRAM)
    run = [sys.executable, "-m", "adbg", "run", *front, "-e", "info memory", script, finished]
    assert shell(WAYS[way], *run) == 5
    assert finished.read_text() == "to its end"


@pytest.mark.parametrize("words", [["runs"], ["doctor"], ["log", "LOG"]], ids=lambda words: words[0])
def test_a_listing_says_that_it_cannot_be_written(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "LOG").write_text("I1121 02:19:25.942734 16194 backward.cc:459] x\n" * 2000)
    command = [sys.executable, "-m", "adbg", *(str(tmp_path / "LOG") if word == "LOG" else word for word in words)]

    def run(stdout: str) -> subprocess.CompletedProcess[str]:
        with open(stdout, "w") as file:
            return subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, timeout=patience(LIMIT))

    done = run("/dev/full")
    assert done.returncode == 125
    assert done.stderr == "adbg: cannot write to standard output: No space left on device\n"
    assert shell(">&- 2>&-", *command) == 0
    assert shell("| true", *command) == 0


def test_a_defect_of_batch_mode_lets_the_program_run_on(tmp_path: Path) -> None:
    """Whatever goes wrong in the front end: the program is let go, its output goes on, and adbg says that it failed."""
    script, finished = tmp_path / "program.py", tmp_path / "finished"
    script.write_text(PROGRAM)
    broken = (
        "import sys; from adbg.tui.batch import batch; from adbg.tui.cli.main import main\n"
        "def fail(*arguments): raise RuntimeError('planted')\n"
        "batch.execute = fail\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", broken, "run", "--batch", "-e", "info memory", script, finished]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(LIMIT))
    assert done.returncode == 125 and "RuntimeError: planted; the program runs on" in done.stderr
    assert finished.read_text() == "to its end" and done.stdout.endswith("line 19\n")
