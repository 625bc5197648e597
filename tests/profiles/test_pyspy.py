"""py-spy beside a process: one that hangs, one that it may not read, one that ends; and its own end with adbg."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.hung import needs_pyspy, plain
from support.patience import patience
from support.program import ROOT, adbg, alive, marked, wait_until

from adbg.profiles.profilers import pyspy
from adbg.profiles.profilers.own_stacks import without_own


def measured(pid: int, folder: Path, seconds: int = 1) -> tuple[str, str]:
    words = ["--with", "py-spy", "--seconds", str(seconds), "--pid", str(pid), "--open", "--run-dir", folder]
    seen = adbg("profile", *words)
    assert seen.status == 0, str(seen)
    assert re.search(r"py-spy, \d+ stacks?, \d+ samples", seen.stdout), str(seen)
    assert re.search(r"^ *self +%  cumulative", seen.stdout, re.MULTILINE), "its report, as text"
    (file,) = folder.glob("profiles/*-py-spy/profile.collapsed")
    return seen.stdout, file.read_text()


@needs_pyspy
@pytest.mark.parametrize(("kind", "innermost"), [("deadlock", "acquire"), ("gil", "gil (")])
def test_a_process_that_hangs(kind: str, innermost: str, tmp_path: Path) -> None:
    """In a lock, where no thread runs at all, and in C with the GIL held. Python's own word is the line."""
    with plain("hangs.py", kind, tmp_path / "stacks") as hung:
        threads = len(os.listdir(f"/proc/{hung.pid}/task"))
        said, stacks = measured(hung.pid, tmp_path / "run")
        assert ("no thread of the process ran" in said) is (kind == "deadlock")
        line = marked("hangs", "other" if kind == "deadlock" else "gil")
        assert f"hangs.py:{line})" in stacks and innermost in stacks, stacks
        assert ".so" in stacks, "native frames"
        assert sum(int(line.rpartition(" ")[2]) for line in stacks.splitlines()) > 30, "of 100 a thread"
        assert len(os.listdir(f"/proc/{hung.pid}/task")) == threads and alive(hung.pid)
        assert "TracerPid:\t0" in Path(f"/proc/{hung.pid}/status").read_text()


@needs_pyspy
def test_what_py_spy_says_is_passed_on(tmp_path: Path) -> None:
    """No Python process; one of another user's; one that ends in the region, of which what was sampled is kept."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        seen = adbg("profile", "--with", "py-spy", "--seconds", "1", "--pid", str(other.pid), "--run-dir", tmp_path)
        assert seen.status != 0 and f"py-spy cannot read process {other.pid}: " in seen.stderr, str(seen)
        assert "Traceback" not in seen.stderr and list(tmp_path.glob("profiles/*")) == []
    finally:
        other.kill()
        other.wait()
    code = "import time\nend = time.monotonic() + 6\nwhile time.monotonic() < end: pass"
    short = subprocess.Popen([sys.executable, "-c", code])
    try:
        said, stacks = measured(short.pid, tmp_path, 60)
    finally:
        short.kill()
        short.wait()
    assert "the process ended in the region" in said and "<module>" in stacks


def test_without_py_spy_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy.sysconfig, "get_path", lambda name: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    can = pyspy.PySpy().available()
    assert (can.ok, can.why) == (False, "py-spy is not installed") and "pip install" in can.hint


@needs_pyspy
def test_it_ends_with_adbg_however_that_ends(tmp_path: Path) -> None:
    """Left alone, it would sample the program for a day."""
    with plain("hangs.py", "gil", tmp_path / "stacks") as hung:
        words = ["profile", "--with", "py-spy", "--seconds", "600", "--pid", str(hung.pid), "--run-dir", str(tmp_path)]
        front = subprocess.Popen([sys.executable, "-m", "adbg", *words], cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            child = wait_until(lambda: samples(front.pid), "py-spy")
            looks = iter(lambda: held(hung.pid), None)
            wait_until(lambda: any(next(looks) for _ in range(20)) and seconds_of(child) > 0.4, "its sampling")
            os.kill(front.pid, signal.SIGKILL)
            front.wait(patience(20))
            wait_until(lambda: not alive(child), "its end")
        finally:
            front.kill()
            front.wait()


def test_a_process_that_lets_nobody_in_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds the GIL in C. What to take instead is said, and it is the process that it was."""
    from adbg.tui.cli import main, profile

    monkeypatch.setattr(profile, "ENTERS", 3.0)
    with plain("hangs.py", "gil", tmp_path / "stacks") as hung:
        words = ["--with", "cprofile", "--seconds", "1", "--pid", str(hung.pid), "--run-dir", str(tmp_path)]
        assert main.main(["profile", *words]) == 2
        said = capsys.readouterr().err
        assert f"process {hung.pid} did not let adbg in within 3 s" in said, said
        assert f"adbg profile --with py-spy --seconds 10 --pid {hung.pid}" in said
        status = Path(f"/proc/{hung.pid}/status").read_text()
        assert "TracerPid:\t0" in status and "State:\tR" in status and list(tmp_path.glob("profiles/*")) == []


def held(pid: int) -> bool:
    """A native stack is read this moment."""
    time.sleep(0.005)
    return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text()


def seconds_of(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def samples(parent: int) -> int:
    time.sleep(0.05)
    for text in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in map(int, text.read_text().split()):
            if b"record" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2]:
                return pid
    return 0


def test_adbgs_own_part_is_left_out() -> None:
    """Its threads, its frames, samples in its own code; a backward that is entered through one of them stays."""
    text = """\
thread (1): MainThread;step (/x/train.py:3);call (/adbg/entry.py:9);THPEngine_run_backward (libtorch_python.so) 5
thread (1): MainThread;step (/x/train.py:3);call (/adbg/entry.py:9);user (/x/train.py:7) 2
thread (1): MainThread;step (/x/train.py:3);call (/adbg/entry.py:9);lock (libpython3.11.so.1.0);0x7f (libc.so.6) 3
thread (1): MainThread;step (/x/train.py:3);call (/adbg/entry.py:9) 1
thread (2): adbg-reader;_read (/adbg/connection.py:9);recv (libc.so.6) 9
thread (3): worker;f(int) (a b.cpp:4) 4
"""
    kept = {
        "thread (1): MainThread;step (/x/train.py:3);THPEngine_run_backward (libtorch_python.so)": 5,
        "thread (1): MainThread;step (/x/train.py:3);user (/x/train.py:7)": 2,
        "thread (3): worker;f(int) (a b.cpp:4)": 4,
    }
    found, left, stays = without_own(text, ("/adbg/",), native=True)
    assert {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in found.splitlines()} == kept
    assert (left, stays) == (4, 11)
    found, left, stays = without_own(text, ("/adbg/",), native=False)  # what ran below is not known then
    assert (left, stays) == (0, 15) and "adbg" not in found
