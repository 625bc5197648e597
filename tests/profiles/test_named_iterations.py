"""Iterations that the user names by a line: how many of them were measured is counted by what each one calls."""

from __future__ import annotations

import json
import pstats
from pathlib import Path

import pytest
from support.program import adbg

SCRIPT = """\
def helper(n):
    return n

def train_step(n):
    total = helper(n)
    for _ in range(n):
        total += helper(1)
    return total

def main():
    before = train_step(1000)
    for n in range(10):
        train_step(100 + n)
        helper(0)
    return before

main()
"""


@pytest.mark.parametrize(
    ("line", "of_step"),
    [(13, True), (5, True), (7, False)],
    ids=["a line of the loop", "the first line of a function", "a line of an inner loop"],
)
def test_an_iteration_is_from_one_time_the_line_runs_to_the_next(tmp_path: Path, line: int, of_step: bool) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    options = ["--iterations", "3", "--warmup", "2", "--iteration-at", f"train.py:{line}", "--run-dir", str(run)]
    done = adbg("profile", *options, str(script))
    assert done.status == 0 and f"3 iterations of train.py:{line} after 2" in done.stderr, str(done)
    (folder,) = (run / "profiles").iterdir()
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["state"], meta["iterations"]) == ("done", 3)
    stats = pstats.Stats(str(folder / "profile.pstats")).stats  # type: ignore[attr-defined]
    calls = {name: counts[1] for (file, _, name), counts in stats.items() if file == str(script)}
    # Of the loop's line: n = 2, 3, 4. Of the function's: the call before the loop is the first, so n = 1, 2, 3, the
    # calls beside the function with them; the function is entered before its line runs.
    expected = {
        13: {"train_step": 3, "helper": 3 * 2 + 102 + 103 + 104},
        5: {"train_step": 3, "helper": 3 * 2 + 101 + 102 + 103},
        7: {"helper": 3},
    }
    assert calls == expected[line]


SEVERAL = """\
def load(n):
    squares = [square(i) for i in range(n)]
    return late(sum(square(i) for i in squares))

def square(n):
    return n * n

def late(n):
    return n

def step(*values):
    return values

for n in range(12):
    step(
        load(3),
        [square(i) for i in range(2)],
    )
"""


def calls_of(script: Path, *options: str) -> dict[str, int]:
    """{function: calls} as cProfile counts them between the bounds, by the standard library's reader."""
    run = script.parent / "run"
    done = adbg("profile", *options, "--run-dir", str(run), str(script))
    assert done.status == 0, str(done)
    (folder,) = (run / "profiles").iterdir()
    assert json.loads((folder / "meta.json").read_text())["state"] == "done"
    stats = pstats.Stats(str(folder / "profile.pstats")).stats  # type: ignore[attr-defined]
    return {name: counts[1] for (file, _, name), counts in stats.items() if file == str(script)}


def test_a_statement_of_several_lines_is_one_iteration(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEVERAL)
    calls = calls_of(script, "--iterations", "5", "--warmup", "1", "--iteration-at", "train.py:15")
    assert {name: calls[name] for name in ("load", "late", "step", "square")} == {
        "load": 5, "late": 5, "step": 5, "square": 5 * (3 + 3 + 2)
    }  # fmt: skip


def test_lines_with_comprehensions_are_measured_to_their_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEVERAL)
    calls = calls_of(script, "--lines", "train.py:2-3")
    assert (calls["square"], calls["late"]) == (3 + 3, 1)


def test_the_program_ends_before(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    done = adbg("profile", "--iterations", "30", "--iteration-at", "train.py:13", "--run-dir", str(run), str(script))
    assert "after 8 of 30 iterations" in done.stderr, str(done)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--iteration-at", "train.py:13"], "--iteration-at goes with --iterations"),
        (["--iterations", "3", "--iteration-at", "train_step"], "an iteration begins at a line, FILE:LINE"),
        (["--iterations", "3", "--iteration-at", "train.py:4-9"], "an iteration begins at one line"),
    ],
)
def test_what_is_no_line_is_said_before_the_script_runs(tmp_path: Path, options: list[str], said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    done = adbg("profile", *options, str(script))
    assert done.status == 2 and said in done.stderr and "ran" not in done.stdout, str(done)
