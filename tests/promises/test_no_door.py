"""The promise "no door": a private folder, a private socket, a token; no TCP port, by whichever way in."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.bare_client import BareClient
from support.frameworks import only_here
from support.program import debuggee, digest_of
from support.terminal import Terminal

from adbg.engine.protocol.rendezvous import listen_dir

pytestmark = only_here("torch", "the socket is the same for every framework")


def listening_ports(pid: int) -> list[object]:
    """TCP and UDP sockets that wait for somebody, of a process and all its children. Without those that they inherit
    from here: gloo, once used in the process that runs the tests, keeps one open that every child gets."""
    inherited = {connection.laddr for connection in psutil.Process().net_connections("inet")}
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return [
        connection
        for process in tree
        for connection in process.net_connections("inet")
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and connection.laddr not in inherited
    ]


def unix_sockets(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_socket()]


def check_private(path: Path) -> None:
    """A socket is 0600 in a folder that is 0700, both owned by this user."""
    for item, mode in ((path, 0o600), (path.parent, 0o700)):
        found = item.lstat()
        assert stat.S_IMODE(found.st_mode) == mode, f"{item}: {stat.filemode(found.st_mode)}"
        assert found.st_uid == os.getuid()


@pytest.fixture
def runtime_dir() -> Path:
    return Path(os.environ["XDG_RUNTIME_DIR"])


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A program that called ``adbg.listen()`` and trains until the returned file exists."""
    finish = tmp_path / "finish"
    command = [sys.executable, str(debuggee("listening")), str(finish)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening")
    yield process, finish
    process.kill()
    process.communicate()


def test_launched(runtime_dir: Path) -> None:
    """While a program is stopped under ``adbg run``: one private socket, no port, in the whole tree of processes."""
    command = [sys.executable, "-m", "adbg", "run", "--repl", "-b", "backward", str(debuggee("slow_training"))]
    with Terminal(command, 40, 120) as terminal:
        terminal.wait_for("(adbg)")
        terminal.wait_for("begin")
        sockets = unix_sockets(runtime_dir)
        assert sockets
        for path in sockets:
            check_private(path)
        for path in runtime_dir.rglob("session.json"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert listening_ports(terminal.pid) == []
        assert len(psutil.Process(terminal.pid).children(recursive=True)) >= 1
        terminal.send("kill\r")
        # Keys typed before the prompt stands again would belong to the program, which is gone.
        terminal.wait_for(lambda screen: "The program" in screen and screen.rstrip().endswith("(adbg)"))
        terminal.send("quit\r")
        terminal.wait_end()
    assert unix_sockets(runtime_dir) == []


def test_listen(listening: tuple[subprocess.Popen[str], Path]) -> None:
    process, finish = listening
    folder = listen_dir(process.pid)
    for path in unix_sockets(folder):
        check_private(path)
    assert unix_sockets(folder)
    assert stat.S_IMODE((folder / "session.json").stat().st_mode) == 0o600
    assert listening_ports(process.pid) == []
    finish.touch()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(digest_of(output)) == 64
    assert not folder.exists() or not unix_sockets(folder)


@pytest.mark.parametrize("token", ["", "0" * 64, None], ids=["empty", "wrong", "first request is another one"])
def test_token(listening: tuple[subprocess.Popen[str], Path], token: str | None) -> None:
    """Without the session's token: an error answer, nothing else, and the program trains on."""
    process, finish = listening
    client = BareClient(process.pid)
    if token is None:
        answer = client.request("evaluate", {"expression": "1 + 1"})
    else:
        answer = client.request("initialize", {"clientID": "test", "token": token, "adbg": True})
    assert answer["success"] is False
    assert answer["message"]
    assert not answer.get("body", {}).get("result")
    again = BareClient(process.pid)
    assert again.initialize()["success"] is True
    again.close()
    client.close()
    finish.touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("said", [b"", b"Content-Length: 500\r\n\r\n{", b"Content-Le"], ids=["nothing", "half", "less"])
def test_a_silent_client_keeps_nobody_out(listening: tuple[subprocess.Popen[str], Path], said: bytes) -> None:
    """More of them than the agent bears at a time: the owner gets in at once, and the silent ones are hung up on."""
    process, finish = listening
    silent = []
    for _ in range(12):
        silent.append(BareClient(process.pid))
        if said:
            silent[-1].send(said)
    owner = BareClient(process.pid)
    owner.socket.settimeout(5)
    assert owner.initialize()["success"] is True
    second = BareClient(process.pid)
    answer = second.initialize()
    assert answer["success"] is False and "another front end" in answer["message"]
    owner.close()
    again = BareClient(process.pid)
    assert again.initialize()["success"] is True, "who hung up keeps nobody out"
    again.close()
    silent[0].socket.settimeout(20)
    try:
        assert silent[0].socket.recv(100) == b"", "the oldest was hung up on"
    except ConnectionResetError:
        pass
    finish.touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_folder_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime folder that everybody may write to is closed, or not used and that said; it is never used as it is."""
    base = tmp_path / "r"
    mine = base / f"adbg-{os.getuid()}"
    mine.mkdir(parents=True)
    mine.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    finish = tmp_path / "finish"
    command = [sys.executable, str(debuggee("listening")), str(finish)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = bool(unix_sockets(base))
        mode = stat.S_IMODE(mine.stat().st_mode)
        finish.touch()
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 0, complaint
    if used:
        assert mode == 0o700, f"{mode:o}"
    else:
        assert "adbg" in complaint, "nothing was opened, and nothing was said"
