"""`--listen` and `adbg join` for real; that no port is open without it; and what a user is told who gets it wrong."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.frameworks import only_here
from support.patience import patience
from support.program import Outcome, commands, debuggee, wait_until

pytestmark = only_here("torch", "two ranks over gloo; the way between hosts is the same for every framework")
ADBG = [sys.executable, "-m", "adbg"]
WAITING = "import sys, time, os\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"


@contextlib.contextmanager
def start(words: list[str], **env: str) -> Iterator[subprocess.Popen[str]]:
    """Killed where the test does not see it end."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, env={**os.environ, **env}, text=True, **pipes)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ports(pid: int) -> list[int]:
    """TCP ports on which a process or a child of it listens, as the kernel tells."""
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    found = [c for process in tree for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return sorted(connection.laddr.port for connection in found)


@pytest.fixture
def finish(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "finish"
    (tmp_path / "finish").touch()


@pytest.mark.parametrize("listen", [False, True])
def test_a_port_is_open_only_where_asked_for(tmp_path: Path, finish: Path, listen: bool) -> None:
    session = tmp_path / "s"
    options = ["--batch", "--no-record", "--session", str(session), *(["--listen", "127.0.0.1:0"] if listen else [])]
    with start([*ADBG, "run", *options, "-c", WAITING, str(finish)]) as process:
        file = session / "session.json"
        wait_until(lambda: file.exists() and file.read_text().endswith("}"), "the session")
        told = json.loads(file.read_text())
        assert ports(process.pid) == ([int(told["address"].rpartition(":")[2])] if listen else [])
        assert bool(told["address"]) is bool(told["fingerprint"]) is listen
        assert stat.S_IMODE(session.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in session.iterdir()} == {0o600}
        finish.touch()
        _, errors = process.communicate(timeout=patience(60))
    assert process.returncode == 0 and "adbg join session.json -- COMMAND" in errors
    assert not session.exists(), "nothing is left"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def test_a_job_over_tls(tmp_path: Path) -> None:
    """The copy of session.json says nothing of a socket on this host: the port is the way."""
    session = tmp_path / "s"
    script = str(debuggee("two_hosts"))
    meet = {"MEET": f"127.0.0.1:{free_port()}", "GLOO_SOCKET_IFNAME": "lo"}
    options = [
        "--batch",
        "--json",
        "--session",
        str(session),
        "--listen",
        "127.0.0.1:0",
        "-b",
        "backward-end backward 2",
    ]
    asked = commands("c", "rank diff params", "delete 1", "continue all")
    copied = tmp_path / "copied.json"
    copied.touch(mode=0o600)
    join = [*ADBG, "join", str(copied), "--no-record", "--", sys.executable, script]
    with start([*ADBG, "run", *options, *asked, "--", sys.executable, script], RANK="0", **meet) as near:
        facts = wait_until(lambda: _facts(session / "session.json"), "the session file")
        copied.write_text(json.dumps({**facts, "socket": "/nowhere/client.sock"}))
        with start(join, RANK="1", **meet) as far:
            output, errors = near.communicate(timeout=patience(90))
            far_output, far_errors = far.communicate(timeout=patience(30))
    outcome = Outcome(["adbg", "run"], near.returncode, output, errors, 0.0)
    assert outcome.status == 0 and far.returncode == 0, f"{outcome}\n{far_output}\n{far_errors}"
    (found,) = outcome.of("result", command="rank diff params")
    assert found["value"]["ranks"] == [0, 1] and found["value"]["differ"] == 0
    hashes = {line.rpartition(" ")[2] for line in (*outcome.program_output.splitlines(), *far_output.splitlines())}
    assert len(hashes) == 1 and len(hashes.pop()) == 64


def _facts(path: Path) -> dict[str, object] | None:
    try:
        facts: dict[str, object] = json.loads(path.read_text())
        return facts
    except (OSError, ValueError):
        return None


def joined(*words: str) -> tuple[int, str]:
    done = subprocess.run([*ADBG, "join", *words], capture_output=True, text=True, timeout=patience(60))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    status, told = joined(str(file), "--", "true")
    assert status == 2 and "cannot read" in told and "copy session.json" in told
    file.write_text(json.dumps({"socket": "/nowhere/client.sock", "token": "x"}))
    file.chmod(0o644)
    status, told = joined(str(file), "--", "true")
    assert status == 125 and "other users may read the token" in told and f"chmod 600 {file}" in told
    file.chmod(0o600)
    status, told = joined(str(file), "--", "true")
    assert status == 2 and "is not on this host" in told and "ssh -N -L" in told
    status, told = joined(str(file), "--via", str(tmp_path / "no.sock"), "--", "true")
    assert status == 125 and "no session answers at" in told
    status, told = joined(str(file), "--via", "localhost:4711", "--", "true")
    assert status == 2 and "no certificate" in told
    status, told = joined(str(file))
    assert status == 2 and "the command after -- is missing" in told
    file.write_text("[]")
    assert joined(str(file), "--", "true")[0] == 2
    for address, status, said in (("4711", 2, "expected HOST:PORT"), ("192.0.2.1:4711", 125, "cannot listen on")):
        words = [*ADBG, "run", "--batch", "--no-record", "--listen", address, "-c", "1"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == status and said in done.stderr


def test_the_command_is_as_without_adbg(tmp_path: Path, finish: Path) -> None:
    """Its exit status, the signal that ends it, the signals that it gets; a folder in use is refused."""
    session = tmp_path / "s"
    with start(
        [*ADBG, "run", "--batch", "--no-record", "--session", str(session), "-c", WAITING, str(finish)]
    ) as process:
        file = session / "session.json"
        wait_until(lambda: _facts(file), "the session")
        assert joined(str(session), "--no-record", "--", "sh", "-c", "exit 7")[0] == 7
        assert joined(str(file), "--no-record", "--", "sh", "-c", "kill -9 $$")[0] == -9
        assert joined(str(file), "--no-record", "--", "/nowhere/command")[0] == 2
        trap = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        with start([*ADBG, "join", str(file), "--no-record", "--", "sh", "-c", trap]) as far:
            assert far.stdout is not None and far.stdout.readline() == "ready\n"
            far.terminate()
            assert far.wait(patience(30)) == 5
        second = subprocess.run(
            [*ADBG, "run", "--batch", "--session", str(session), "-c", "1"], capture_output=True, text=True
        )
        assert second.returncode == 125 and "a session runs in" in second.stderr
        finish.touch()
        process.communicate(timeout=patience(60))
    assert process.returncode == 0
