"""The promise "no door" of an attach: while it lasts there is one socket, for its owner alone, and no port; another
user can neither come in nor stand in for the front end; afterwards there is nothing left."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from stress import catalog
from stress.attaching import Session
from stress.census import census
from stress.running import Running
from support.frameworks import only_here
from support.patience import patience
from support.program import ROOT

from adbg.engine.protocol import messages as p

pytestmark = only_here("torch", "the way in is the same for every framework")
NOBODY = 65534
AS_NOBODY: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/", "text": True}
PYTHON = "/usr/bin/python3"  # one that another user may run, wherever the tests' own lies
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not catalog.version(PYTHON) >= "3.10", reason="only root can be somebody else"
)


def nobody(code: str, *words: str, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Python code, run by another user."""
    command = [PYTHON, "-I", "-c", code, *words]
    return subprocess.run(command, **AS_NOBODY, capture_output=True, timeout=patience(limit))


@pytest.fixture
def open_base(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets as /tmp is: everybody may write there, so what keeps others out is adbg's own."""
    import shutil
    import tempfile

    base = Path(tempfile.mkdtemp(prefix="adbg-o"))
    base.chmod(0o1777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setenv("TMPDIR", str(base))
    yield base
    shutil.rmtree(base, ignore_errors=True)


def tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def ports(pid: int) -> list[object]:
    waiting = (psutil.CONN_LISTEN, psutil.CONN_NONE)
    return [each for each in psutil.Process(pid).net_connections("inet") if each.status in waiting]


def test_one_private_socket_and_nothing_afterwards(open_base: Path) -> None:
    with Running(catalog.kind("tight Python loop"), sys.executable) as target:
        before, ports_before = tree(open_base), ports(os.getpid())
        with Session() as session:
            client = session.begin(target.pid, patience(60))
            made = [Path(name) for name in tree(open_base) if name not in before]
            sockets = [path for path in made if path.is_socket()]
            assert len(sockets) == 1
            for path in made:
                state = path.lstat()
                assert stat.S_IMODE(state.st_mode) & 0o077 == 0, f"{path}: {stat.filemode(state.st_mode)}"
                assert state.st_uid == os.getuid()
            assert ports(target.pid) == []
            assert ports(os.getpid()) == ports_before
            ours = [name for name in census(target.pid).descriptors.values() if name.startswith("socket:")]
            assert len(ours) == 2, "its own stdin and the connection: the program does not listen"
            client.request(p.Disconnect(), patience(30))
            assert session.lost.wait(patience(30))
        target.end()
        assert tree(open_base) == before


@as_root
def test_another_user_cannot_come_in(open_base: Path) -> None:
    """Neither to the socket, nor read the token, nor put something in its place."""
    code = """
import os, socket, sys
path, folder = sys.argv[1], os.path.dirname(sys.argv[1])
def attempt(what):
    try: what()
    except OSError as error: return type(error).__name__
    return "done"
print(attempt(lambda: socket.socket(socket.AF_UNIX).connect(path)))
print(attempt(lambda: open(folder + "/session.json").read()))
print(attempt(lambda: os.listdir(folder)))
print(attempt(lambda: os.rename(folder, folder + "x")))
print(attempt(lambda: os.unlink(path)))
print(attempt(lambda: open(folder + "/new", "w")))
"""
    with Running(catalog.kind("tight Python loop"), sys.executable) as target, Session() as session:
        session.begin(target.pid, patience(60))
        tried = nobody(code, session.listener.config.socket)
        assert tried.stdout.split() == ["PermissionError"] * 6, tried
        assert nobody("import os, sys; os.kill(int(sys.argv[1]), 0)", str(target.pid)).returncode != 0


@as_root
@pytest.mark.parametrize("trick", ["its own folder", "a link to it", "a socket of another user"])
def test_another_user_cannot_stand_in_for_the_front_end(trick: str, open_base: Path) -> None:
    """Whatever session file the program is told of: it dials nothing that another user could have made."""
    code = f"""
import json, os, socket, sys, time
os.umask(0o077)
folder = sys.argv[1]
os.mkdir(folder)
sock = socket.socket(socket.AF_UNIX); sock.bind(folder + "/s"); sock.listen()
with open(folder + "/session.json", "w") as file:
    json.dump(dict(socket=folder + "/s", token="0" * 64, engine_path={str(ROOT / "engine")!r}, package_path=""), file)
print("READY", flush=True)
sock.settimeout(float(sys.argv[2]))
try:
    sock.accept(); print("SOMEBODY CAME")
except TimeoutError:
    print("nobody came")
"""
    theirs = open_base / "theirs"
    begin = ROOT / "engine" / "bootstrap" / "attach.py"
    command = [PYTHON, "-I", "-c", code, str(theirs), "3"]
    with subprocess.Popen(command, **AS_NOBODY, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == "READY\n"
        session = theirs / "session.json"
        if trick == "a link to it":
            session = open_base / "link" / "session.json"
            session.parent.mkdir(mode=0o700)
            session.symlink_to(theirs / "session.json")
        elif trick == "a socket of another user":
            session = open_base / "mine" / "session.json"
            session.parent.mkdir(mode=0o700)
            fields = json.loads((theirs / "session.json").read_text())
            session.write_text(json.dumps(fields))
            session.chmod(0o600)
        program = f"import runpy, time; runpy.run_path({str(begin)!r})['begin']({str(session)!r}); time.sleep(2)"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=patience(60))
        assert other.stdout.read() == "nobody came\n"


@as_root
def test_the_same_one_of_this_user_is_dialled(open_base: Path) -> None:
    """The test above can fail: the same files, made by the right user, are followed."""
    folder = open_base / "mine"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(folder / "s"))
        os.chmod(folder / "s", 0o600)
        sock.listen()
        sock.settimeout(patience(20))
        fields = {"socket": str(folder / "s"), "token": "0" * 64, "engine_path": str(ROOT / "engine")}
        (folder / "session.json").write_text(json.dumps({**fields, "package_path": ""}))
        (folder / "session.json").chmod(0o600)
        begin = ROOT / "engine" / "bootstrap" / "attach.py"
        file = str(folder / "session.json")
        program = f"import runpy, time; runpy.run_path({str(begin)!r})['begin']({file!r}); time.sleep(2)"
        with subprocess.Popen([sys.executable, "-c", program]) as dialling:
            sock.accept()[0].close()
            dialling.wait(patience(60))


def test_wrong_token(open_base: Path) -> None:
    """Who is let at the socket (the same user) and does not know the token hears nothing; the session goes on."""
    with Running(catalog.kind("tight Python loop"), sys.executable) as target, Session() as session:
        client = session.begin(target.pid, patience(60))
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(patience(20))
            stranger.connect(session.listener.config.socket)
            body = {"seq": 1, "type": "event", "event": "adbg/hello", "body": {"token": "0" * 64, "process": {}}}
            data = json.dumps(body).encode()
            stranger.sendall(b"Content-Length: %d\r\n\r\n" % len(data) + data)
            assert stranger.recv(100) == b""
        assert session.agents.empty()
        assert client.request(p.Threads(), patience(30)) is not None


@as_root
def test_another_users_process_is_not_entered() -> None:
    """As nobody, a process of root's; as root, a process of nobody's: both are refused from what /proc says."""
    look = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from adbg.engine.attach.target import examine
from adbg.engine.errors import AdbgError
try:
    print("may enter", examine(int(sys.argv[1])))
except AdbgError as error:
    print("refused:", error.message)
"""
    with Running(catalog.kind("tight Python loop"), sys.executable) as target:
        if nobody("import sys; open(sys.argv[1]).read()", str(ROOT / "engine" / "errors.py")).returncode == 0:
            tried = nobody(look, str(target.pid))
            assert tried.stdout.startswith("refused: "), tried
            assert "belongs to user root" in tried.stdout
        target.end()
    with subprocess.Popen([PYTHON, "-I", "-c", "input()"], user=NOBODY, stdin=subprocess.PIPE) as theirs:
        time.sleep(0.1)
        own = subprocess.run([sys.executable, "-c", look, str(theirs.pid)], capture_output=True, text=True, check=True)
        assert own.stdout.startswith("refused: ") and "sudo -u" not in own.stdout
        assert "belongs to user nobody" in own.stdout
        theirs.communicate(b"\n")
        assert theirs.returncode == 0
