"""The way that ``adbg join`` takes, and who may stand at its end: the token is for this user's processes alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.foreign import USER, foreigner, needs_root

from adbg.engine.errors import AdbgError
from adbg.engine.launch.hosts import join
from adbg.engine.protocol.rendezvous import SessionConfig, private_dir


@pytest.fixture
def folder() -> Iterator[Path]:
    made = private_dir()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def forwarded(folder: Path) -> Iterator[Path]:
    """A socket as ssh makes one: this user's, 0600, in a folder of this user's."""
    path = folder / "job.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o600)
        server.listen()
        yield path


def test_a_forwarded_socket_is_dialled(forwarded: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)  # a home folder that lies elsewhere
    for mode, path in ((0o700, forwarded), (0o700, tmp_path / "link" / "job.sock"), (0o1777, forwarded)):
        folder.chmod(mode)  # the last as /tmp: nobody may take another's file away
        with join._unix(str(path)).raw as sock:
            assert os.path.samefile(sock.getpeername(), forwarded)


def test_a_folder_that_others_may_write_to_is_refused(forwarded: Path, folder: Path) -> None:
    """They could put a socket of their own there."""
    for mode in (0o777, 0o770):
        folder.chmod(mode)
        with pytest.raises(AdbgError, match=f"other users may replace {forwarded}: nothing was sent") as caught:
            join._unix(str(forwarded))
        assert f"chmod 700 {folder}" in caught.value.hint


def test_what_is_no_socket_is_refused(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(AdbgError, match="is no socket"):
        join._unix(str(folder / "file"))
    with pytest.raises(AdbgError, match=r"no session answers at .*/none: No such file"):
        join._unix(str(folder / "none"))
    with pytest.raises(AdbgError, match="no session answers at"):
        join._unix(str(folder / ("x" * 120)))


@needs_root
@pytest.mark.parametrize("whose", ["socket", "folder"])
def test_another_users_socket_is_refused(forwarded: Path, folder: Path, whose: str) -> None:
    path = forwarded if whose == "socket" else folder
    os.chown(path, USER, USER)
    with pytest.raises(AdbgError, match=f"{path} belongs to user {USER}: nothing was sent") as caught:
        join._unix(str(forwarded))
    assert "--via" in caught.value.hint
    os.chown(path, 0, 0)


@needs_root
def test_another_users_process_gets_no_token(folder: Path) -> None:
    """The file is one's own, who listens there is not."""
    with foreigner(folder / "job.sock") as other:
        with pytest.raises(AdbgError, match=f"user {USER} answers at {other.path}: nothing was sent"):
            join._unix(str(other.path))
        assert other.heard() == "b''"


def test_the_certificate_goes_before_a_path_of_the_other_host(forwarded: Path) -> None:
    """What lies at that path on this host may be anybody's; who has the certificate is the session."""
    config = SessionConfig(str(forwarded), "t", address="near:4711", fingerprint="0" * 64)
    assert join._way(config, "") == ("", "near:4711")
    assert join._way(config, str(forwarded)) == (str(forwarded), "")
    assert join._way(config, "gateway:1") == ("", "gateway:1")
    assert join._way(SessionConfig(str(forwarded), "t"), "") == (str(forwarded), "")


def test_what_killed_joins_left_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what lives, is young, or is something else."""
    monkeypatch.setattr(join, "private_dir", lambda prefix: _made(folder / f"{prefix}new"))
    old = time.time() - 2 * join.YOUNG
    locks = {}
    for name in ("dead", "living", "young", "other", "link"):
        target = _made(folder / f"adbg-join-{name}")
        (target / "client.sock").touch()
        if name != "other":
            locks[name] = os.open(target / join.ALIVE, os.O_CREAT | os.O_RDWR, 0o600)
            os.utime(target / join.ALIVE, (old, old) if name != "young" else None)
    fcntl.flock(locks["living"], fcntl.LOCK_EX)
    (folder / "adbg-join-link").rename(folder / "elsewhere")
    (folder / "adbg-join-link").symlink_to(folder / "elsewhere")
    (folder / "adbg-x").mkdir()
    with join._folder() as made:
        assert (made / join.ALIVE).exists()
        left = {path.name for path in folder.iterdir()}
        with open(made / join.ALIVE) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kept = {f"adbg-join-{name}" for name in ("living", "young", "other", "link")}
    assert left == kept | {"adbg-join-new", "elsewhere", "adbg-x"}
    assert not made.exists() and (folder / "elsewhere" / "client.sock").exists()
    for fd in locks.values():
        os.close(fd)


def _made(path: Path) -> Path:
    path.mkdir(0o700)
    return path


SIGNALLED_BEFORE_IT_RETURNS = """
import os, signal, subprocess
class Slow(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Slow
from adbg.engine.launch.hosts.join import _run
print(_run(["sleep", "600"], dict(os.environ)))
"""


def test_a_signal_that_comes_while_the_command_starts_is_passed_on() -> None:
    driver = subprocess.run([sys.executable, "-c", SIGNALLED_BEFORE_IT_RETURNS], capture_output=True, text=True)
    assert (driver.returncode, driver.stdout) == (0, f"{-signal.SIGTERM:d}\n"), driver.stderr
