"""``adbg profile FILE`` in a terminal: the report on the whole screen, and text where that is asked for."""

from __future__ import annotations

import cProfile
import json
import re
import sys
from pathlib import Path

import pytest
from support.terminal import Terminal

from adbg.tui.cli.runs_text import run_lines

pytestmark = pytest.mark.timeout(180)

RUN = "import sys; from adbg.__main__ import main; sys.exit(main())"
ADBG = [sys.executable, "-c", RUN, "profile"]


def work(n: int) -> int:
    return sum(i * i for i in range(n))


def measured(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler = cProfile.Profile()
    profiler.runcall(lambda: [work(3000) for _ in range(20)])
    profiler.dump_stats(path)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two profiles and one of nothing."""
    (tmp_path / "run.json").write_text("{}")
    for number in (1, 2, 3):
        file = measured(tmp_path / "profiles" / f"00{number}-cprofile" / "profile.pstats")
        meta = {"profiler": "cprofile", "file": file.name, "region": {"kind": "iterations", "count": 10 + number}}
        (file.parent / "meta.json").write_text(json.dumps(meta))
    file.write_bytes(b"")
    return tmp_path


def test_the_report_of_a_file_its_source_and_back(tmp_path: Path) -> None:
    file = measured(tmp_path / "x.pstats")
    with Terminal([*ADBG, str(file)], 24, 80) as terminal:
        terminal.wait_for("▏<lambda>")
        terminal.wait_for("x.pstats: cProfile")
        terminal.send("/^work$\r")
        terminal.wait_for("in 1")
        terminal.send("o")
        terminal.wait_for(lambda text: f"test_report_app.py:{work.__code__.co_firstlineno}" in text and "▶" in text)
        terminal.send("q")
        terminal.wait_for("▏<lambda>")
        terminal.send("q")
        assert terminal.wait_end() == 0


def test_a_run_says_which_profiles_it_has(run: Path) -> None:
    told = [line for line in run_lines(str(run)) if "profile  " in line]
    folder = run / "profiles"
    assert told == [
        f"  profile  002-cprofile: 12 iterations; adbg profile {folder}/002-cprofile",
        f"  profile  001-cprofile: 11 iterations; adbg profile {folder}/001-cprofile",
    ]


def test_the_profiles_of_a_run_and_the_difference_of_two(run: Path) -> None:
    with Terminal([*ADBG, str(run)], 24, 100) as terminal:
        terminal.wait_for("001-cprofile")
        terminal.wait_for("12 iterations")
        assert "003" not in terminal.text, "of nothing"
        terminal.send("\r")  # the newest
        terminal.wait_for("▏<lambda>")
        terminal.send("d")
        terminal.wait_for("difference to 001-cprofile")
        terminal.send("\r")
        terminal.wait_for("001-cprofile → 002-cprofile")
        terminal.send("q")
        terminal.wait_for(lambda text: "→" not in text and "▏<lambda>" in text)
        terminal.send("q")
        terminal.wait_for("Profiles of")
        terminal.send("q")
        assert terminal.wait_end() == 0


@pytest.mark.parametrize("words", [["--no-open"], ["--sort", "cumulative"], ["--flame"]], ids=" ".join)
def test_text_on_a_terminal(tmp_path: Path, words: list[str]) -> None:
    file = measured(tmp_path / "x.pstats")
    with Terminal([*ADBG, str(file), *words], 24, 80) as terminal:
        assert terminal.wait_end() == 0
        assert b"\x1b[?1049h" not in terminal.raw and re.search(rb"cProfile, [\d,]+ calls", terminal.raw)


def test_a_script_is_measured_and_its_report_opens(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "def busy():\n    return sum(i * i for i in range(30000))\nprint('SUM', busy())\nraise SystemExit(3)\n"
    )
    with Terminal([*ADBG, "--open", "--run-dir", str(tmp_path / "run"), str(script)], 24, 80) as terminal:
        terminal.wait_for("▏busy")
        terminal.wait_for("001-cprofile: cprofile, ")
        terminal.send("q")
        assert terminal.wait_end() == 3, "the script's own"
        assert f"SUM {sum(i * i for i in range(30000))}".encode() in terminal.raw
