"""A job that nobody prepared hangs; adbg comes afterwards, tells why, and goes: the ranks hang on as before."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import on_frameworks
from support.patience import patience
from support.program import DEBUGGEES, run, wait_until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the way into a process is tried on x86_64 only"),
]
SCRIPTS = {"torch": "hanging.py", "paddle": "paddle_hanging.py"}


@contextmanager
def hanging(script: str, folder: Path) -> Iterator[tuple[int, list[int]]]:
    """(pid of what started the ranks, pids of the ranks). All are killed at the end."""
    command = [sys.executable, str(DEBUGGEES / script), "mismatch", "2", str(folder)]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ranks: list[int] = []
    try:
        limit = time.monotonic() + patience(60)
        while not all((folder / f"ready{rank}").exists() for rank in (0, 1)):
            assert time.monotonic() < limit and launcher.poll() is None, "the ranks did not come"
            time.sleep(0.05)
        ranks = [int(pid) for pid in children(launcher.pid) if b"spawn_main" in command_of(pid)]
        yield launcher.pid, ranks
    finally:
        for pid in [*map(int, children(launcher.pid)), launcher.pid]:
            os.kill(pid, signal.SIGKILL)
        launcher.wait()


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def command_of(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@on_frameworks()
def test_a_job_found_hanging(framework: str, tmp_path: Path) -> None:
    script = SCRIPTS[framework]
    with hanging(script, tmp_path) as (launcher, ranks):
        before = {pid: len(os.listdir(f"/proc/{pid}/task")) for pid in ranks}
        words = ["--job", launcher, "--batch", "--json", "-e", "why hang", "-e", "set group-timeout 86400"]
        words += ["-e", "why hang 0.5", "-e", "detach"]
        outcome = run([sys.executable, "-m", "adbg", "attach", *words])
        (line,) = outcome.of("result", command="why hang")
        found: dict[str, Any] = line["value"]
        assert found["kind"] == "mismatch", str(outcome)
        (again,) = outcome.of("result", command="why hang 0.5")  # what began keeps the time-out that it began with
        assert again["value"]["timeout"] == found["timeout"] != 86400, str(outcome)
        wrote = {rank: (tmp_path / f"rank{rank}.log").read_text().splitlines()[-1].split() for rank in (0, 1)}
        source = (DEBUGGEES / script).read_text().splitlines()
        for rank, row in found["divergence"]["rows"].items():
            assert [row["op"], row["shape"]] == [wrote[int(rank)][1], [int(wrote[int(rank)][2])]]
            assert f"dist.{row['op']}(" in source[row["place"]["line"] - 1]
        # torch's own recorder numbers it, as the ranks did; Paddle numbers nothing
        assert found["divergence"]["seq"] == (4 if framework == "torch" else 0)
        wait_until(lambda: {pid: len(os.listdir(f"/proc/{pid}/task")) for pid in ranks} == before, "threads gone")
        assert all(Path(f"/proc/{pid}").exists() for pid in ranks)
