"""A program outlives its front end, and ADBG_SESSION in its environment names a folder that is gone: whoever makes one
of that name, or listens in it, must not be taken for the front end."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.foreign import USER, foreigner, needs_root

from adbg.engine.agent import agent as agents
from adbg.engine.errors import AdbgError
from adbg.engine.launch.launch import program_environment
from adbg.engine.protocol.rendezvous import SessionConfig, private_dir, read_config

LOADED = "code of the session's folder runs"
CHILD = "import torch\ntry:\n    import adbg\nexcept ImportError: pass\nprint('ran')"


@dataclass
class Planted:
    """A session folder whose engine says that it was loaded."""

    folder: Path
    work: Path

    @property
    def file(self) -> Path:
        return self.folder / "session.json"

    @property
    def socket(self) -> Path:
        return self.folder / "client.sock"

    def write(self, **changed: str) -> None:
        engine = self.work / "engine"
        facts = {"socket": str(self.socket), "token": "t", "engine_path": str(engine), "package_path": str(engine)}
        self.file.write_text(json.dumps({**facts, **changed}))

    def run(self, main: bool = False) -> str:
        """What a Python process of the program's writes."""
        env = program_environment(os.environ, self.file, main)
        command = [sys.executable, "-c", CHILD]
        done = subprocess.run(command, cwd=self.work, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == "ran", done
        return done.stdout + done.stderr


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Planted]:
    work, folder = tmp_path / "work", private_dir()
    (work / "engine").mkdir(parents=True)
    (work / "engine" / "__init__.py").write_text(f"print({LOADED!r})")
    (work / "torch.py").write_text("")
    made = Planted(folder, work)
    made.file.touch(0o600)
    made.write()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(made.socket))
        yield made
    for path in folder.iterdir():
        path.unlink()
    if folder.is_symlink():
        folder.unlink()
    else:
        folder.rmdir()


def _linked(path: Path, work: Path) -> None:
    moved = work / "moved"
    path.rename(moved)
    path.symlink_to(moved)


def _as_a_file(planted: Planted) -> None:
    planted.socket.unlink()
    planted.socket.touch()


OPEN: dict[str, Callable[[Planted], object]] = {
    "the folder is open to others": lambda planted: planted.folder.chmod(0o755),
    "the folder is a link": lambda planted: _linked(planted.folder, planted.work),
    "the file can be read by others": lambda planted: planted.file.chmod(0o644),
    "the file is a link": lambda planted: _linked(planted.file, planted.work),
    "the socket lies elsewhere": lambda planted: planted.write(socket=str(planted.work / "client.sock")),
    "the socket is none": _as_a_file,
}
THEIRS: dict[str, Callable[[Planted], object]] = {
    "the folder is another user's": lambda planted: os.chown(planted.folder, USER, USER),
    "the file is another user's": lambda planted: os.chown(planted.file, USER, USER),
    "the socket is another user's": lambda planted: os.chown(planted.socket, USER, USER),
}


def test_a_folder_of_ones_own_is_used(planted: Planted) -> None:
    assert LOADED in planted.run()
    planted.socket.unlink()  # the front end is gone: the agent says so
    assert LOADED in planted.run()


@pytest.mark.parametrize("how", [*OPEN, *(pytest.param(how, marks=needs_root) for how in THEIRS)])
def test_another_users_code_is_not_loaded(planted: Planted, how: str) -> None:
    """Not with the framework, not by ``import adbg``, not in the launched process; the program runs on."""
    (OPEN.get(how) or THEIRS[how])(planted)
    for main in (False, True):
        said = planted.run(main)
        assert LOADED not in said, said
        (line,) = [line for line in said.splitlines() if line.startswith("adbg: ")]
        assert "runs undebugged" in line and str(planted.folder) in line and "`adbg run`" in line
    with pytest.raises((AdbgError, OSError, ValueError)):
        read_config(planted.file)


@needs_root
def test_the_agent_says_nothing_to_another_users_process(tmp_path: Path) -> None:
    """The file of the socket is one's own, who listens there is not."""
    folder = private_dir()
    try:
        with foreigner(folder / "s") as other:
            said = io.StringIO()
            with redirect_stderr(said):
                assert agents.start(SessionConfig(str(other.path), "secret"), patience=0.2) is None
            assert other.heard() == "b''", "no hello, no token"
        assert f"user {USER} " in said.getvalue() and "running undebugged" in said.getvalue()
        assert said.getvalue().count("\n") == 1
    finally:
        shutil.rmtree(folder)
