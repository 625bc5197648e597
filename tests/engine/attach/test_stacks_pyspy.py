"""py-spy as a program beside: what it writes, and what becomes of it when it fails, hangs, or is not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.program import wait_until

from adbg.engine.attach import stacks_pyspy
from adbg.engine.attach.stacks_pyspy import SeenFrame, dump
from adbg.engine.errors import CommandError

ENTRY = {
    "pid": 5,
    "thread_id": 11,
    "thread_name": "MainThread",
    "os_thread_id": 5,
    "active": False,
    "owns_gil": True,
    "frames": [
        {"name": "wait", "filename": "/l/libc.so.6", "module": "/l/libc.so.6", "line": 0},
        {"name": "step", "filename": "/t/train.py", "module": None, "line": 7},
    ],
}
Make = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Make:
    def make(body: str) -> str:
        path = tmp_path / "py-spy"
        path.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\n{body}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    yield process
    process.kill()
    process.wait()


def test_its_answer_is_read(program: Make) -> None:
    path = program(f"assert sys.argv[1:4] == ['dump', '--pid', '5']\nprint({json.dumps(json.dumps([ENTRY]))})")
    (thread,) = dump(5, native=True, program=path)
    assert (thread.ident, thread.tid, thread.name, thread.owns_gil) == (11, 5, "MainThread", True)
    assert thread.frames == (
        SeenFrame("wait", "/l/libc.so.6", 0, "/l/libc.so.6"),
        SeenFrame("step", "/t/train.py", 7),
    )


def test_only_native_frames_hold_the_process(program: Make) -> None:
    path = program("sys.stderr.write('Error: ' + ' '.join(sys.argv[4:]))\nsys.exit(1)")
    for native, option in ((True, "--native"), (False, "--nonblocking")):
        with pytest.raises(CommandError, match=f"py-spy cannot read process 5: --json {option}$"):
            dump(5, native, program=path)


def test_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_pyspy, "find", lambda: "")
    with pytest.raises(CommandError, match="py-spy is not installed here") as raised:
        dump(5, False)
    assert "pip install py-spy" in raised.value.hint


@pytest.mark.parametrize("answer", ["", "no json", "[1]", '[{"thread_id": 1}]'])
def test_an_answer_that_nobody_can_read(program: Make, answer: str) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        dump(5, False, program=program(f"print({answer!r})"))


def test_one_that_never_ends_leaves_the_process_running(program: Make, sleeper: subprocess.Popen[bytes]) -> None:
    """Killed between its SIGSTOP and its wait, it would leave the process stopped for good."""
    path = program("signal.signal(15, signal.SIG_IGN)\nos.kill(int(sys.argv[3]), signal.SIGSTOP)\ntime.sleep(600)")
    begun = time.monotonic()
    with pytest.raises(CommandError, match="had not read process"):
        dump(sleeper.pid, True, timeout=1.0, program=path)
    assert time.monotonic() - begun < 30
    wait_until(lambda: _state(sleeper.pid) == "S", "it sleeps again")


def test_a_process_that_was_stopped_before_stays_so(program: Make, sleeper: subprocess.Popen[bytes]) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: _state(sleeper.pid) == "T", "it is stopped")
    with pytest.raises(CommandError):
        dump(sleeper.pid, True, timeout=0.5, program=program("time.sleep(600)"))
    assert _state(sleeper.pid) == "T"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
