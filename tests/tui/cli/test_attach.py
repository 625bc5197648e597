"""``adbg attach`` without a number, and its refusals: the real command, beside real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import adbg

SCRIPT = "import sys, time\nprint('up', flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A rank of nobody's job, which waits."""
    script = tmp_path / "sleeper.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "RANK": "3"}
    with subprocess.Popen(
        [sys.executable, "-u", script, "--for", "ever"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def test_the_list_without_a_terminal(sleeper: subprocess.Popen[str]) -> None:
    """Compared with what the kernel says of the process."""
    outcome = adbg("attach")
    assert outcome.status == 2, str(outcome)
    assert "PID" in outcome.stderr and "--job" in outcome.stderr
    head, *rows = outcome.stdout.splitlines()
    assert head.split() == ["pid", "rank", "framework", "cpu", "memory", "age", "state", "program"]
    (row,) = [line.split() for line in rows if line.split()[0] == str(sleeper.pid)]
    assert row[1] == "3" and row[2] == "-" and row[-3:] == ["sleeper.py", "--for", "ever"]
    assert all(line.split()[0] != str(os.getppid()) or "adbg" not in line for line in rows)
    assert adbg("attach", "--batch").status == 2


def test_one_json_line_a_process(sleeper: subprocess.Popen[str]) -> None:
    outcome = adbg("attach", "--json")
    assert outcome.status == 0, str(outcome)
    (row,) = outcome.of("process", pid=sleeper.pid)
    pages = int(Path(f"/proc/{sleeper.pid}/statm").read_text().split()[1])
    page = os.sysconf("SC_PAGE_SIZE")
    assert row["rank"] == 3 and row["parent"] == os.getpid() and row["obstacle"] == "" and row["frameworks"] == []
    assert row["memory"] == pytest.approx(pages * page, rel=0.2)
    assert row["argv"] == Path(f"/proc/{sleeper.pid}/cmdline").read_text().split("\0")[:-1]
    assert row["program"] == "sleeper.py --for ever" and row["cwd"] == os.getcwd() and row["state"] == "sleeping"
    started = json.loads(Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 <= row["age"] <= uptime - started / os.sysconf("SC_CLK_TCK") + 1


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["attach", "--batch", "4194300"], "no process 4194300"),
        (["attach", "--job", "--batch", "4194300"], "no process 4194300"),
        (["attach", "--batch", str(os.getpid())], "started this adbg"),
        (["attach", "--timeout", "3", str(os.getpid())], "--timeout works with --batch only"),
        (["attach", "0"], "must be the number of a process"),
    ],
)
def test_refusals_are_usage_errors(words: list[str], wanted: str) -> None:
    outcome = adbg(*words)
    assert outcome.status == 2 and wanted in outcome.stderr, str(outcome)
    assert "Traceback" not in outcome.stderr and outcome.stdout == ""


def test_a_job_without_ranks(sleeper: subprocess.Popen[str]) -> None:
    """A shell with nothing below it."""
    with subprocess.Popen(["sleep", "60"]) as nothing:
        try:
            outcome = adbg("attach", "--batch", "--job", str(nothing.pid))
        finally:
            nothing.kill()
    assert outcome.status == 2 and f"no rank was found below process {nothing.pid}" in outcome.stderr, str(outcome)
