"""Starts a command whose Python processes join a debugging session on another host. Runs in ``adbg join``, which stays
beside the command: it carries its connections, passes signals on, and ends as the command ends.

The command gets this process's own terminal and environment, with the two variables by which adbg gets in
(``launch.program_environment``). Its processes dial a unix socket of this host: one that ssh forwards, or one that
``tunnel.Passage`` makes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.launch.hosts.tunnel import Carrier, Clear, Passage, dial, parse_address
from adbg.engine.launch.launch import prepare_session, program_environment
from adbg.engine.protocol.rendezvous import SOCKET, SessionConfig, copied_config, peer_of, private_dir

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
ALIVE = "alive"  # in the folder of a join: locked while it lives
YOUNG = 60.0  # seconds
_PREFIX = "adbg-join-"
_FORWARD = "forward the session's socket into a folder of your own (mode 700), and name it: --via /PATH/job.sock"
FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # the terminal sends them to the command too


@dataclass(frozen=True, slots=True)
class Joining:
    """What ``join`` needs.

    Args:
        session: session.json of the other host, copied, or the folder that has it.
        via: unix socket that leads there, or HOST:PORT; "" as the file says.
        run_dir: called once the session was reached: where processes here record, "" for nowhere.
    """

    session: str
    command: Sequence[str] = ()
    via: str = ""
    run_dir: Callable[[], str] = str


def join(asked: Joining) -> int:
    """Run the command to its end; returns its exit status, or ends by the signal that ended it.

    Raises:
        AdbgError: the session cannot be reached, or the command not be started.
    """
    with joined(asked) as way:
        status = _run(asked.command, program_environment(os.environ, way.session_file, main=False))
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


class Joined:
    """The way to the session, while it is open. ``session_file`` is for processes of this host."""

    def __init__(self, folder: Path, asked: Joining, on_peer: Callable[[int], None]) -> None:
        config = _config(asked.session)
        path, address = _way(config, asked.via)
        connect: Callable[[], Carrier] = partial(_unix, path)
        if address:
            connect = partial(dial, parse_address(address), config.fingerprint, config.token)
        connect().raw.close()
        self.passage = Passage(folder / SOCKET, connect, on_peer)
        here = replace(config, socket=str(folder / SOCKET), run_dir=asked.run_dir(), address="")
        self.session_file = prepare_session(replace(here, engine_path="", package_path=""))


@contextlib.contextmanager
def joined(asked: Joining, on_peer: Callable[[int], None] = lambda pid: None) -> Iterator[Joined]:
    """The way is tried once first.

    Raises:
        AdbgError: the session cannot be reached.
    """
    with _folder() as folder:
        way: Joined | None = None
        try:
            way = Joined(folder, asked, on_peer)
            yield way
        finally:
            if way is not None:
                way.passage.close()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new one, with a file that is locked while this process lives; what killed ones left beside it is removed."""
    folder = private_dir(_PREFIX)
    fd = os.open(folder / ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for other in folder.parent.glob(_PREFIX + "*"):
                if _is_dead(other):
                    shutil.rmtree(other, ignore_errors=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def _is_dead(folder: Path) -> bool:
    """Whether this user's process that made ``folder`` is gone; False where that cannot be told."""
    try:
        around = folder.lstat()
        if around.st_uid != os.geteuid() or not stat.S_ISDIR(around.st_mode):
            return False
        fd = os.open(folder / ALIVE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if time.time() - os.fstat(fd).st_mtime < YOUNG:
                return False  # it may not have come to lock it yet
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        finally:
            os.close(fd)
    except OSError:
        return False


def _config(text: str) -> SessionConfig:
    path = Path(text)
    path = path / "session.json" if path.is_dir() else path
    try:
        return copied_config(path)
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error.strerror}", "copy session.json here from the host where `adbg run` runs"
        ) from None
    except (ValueError, TypeError):
        raise CommandError(f"{path} is not a session file", "copy session.json from the host of `adbg run`") from None


def _way(config: SessionConfig, via: str) -> tuple[str, str]:
    """(unix socket, "") or ("", "HOST:PORT")."""
    if via:
        if os.path.exists(via) or "/" in via:
            return via, ""
        parse_address(via)
        if not config.fingerprint:
            raise CommandError(
                f"this session has no certificate for {via}",
                "`adbg run --listen HOST:PORT` makes one; or forward its socket",
            )
        return "", via
    if config.address and config.fingerprint:
        return "", config.address  # a path of the other host may be anybody's here
    if os.path.exists(config.socket):
        return config.socket, ""
    raise CommandError(
        f"{config.socket} is not on this host, and the session has no port open",
        f"forward it: ssh -N -L /PATH/job.sock:{config.socket} HOST, then adbg join --via /PATH/job.sock …",
    )


def _unix(path: str) -> Clear:
    """Raises AdbgError where nobody answers, or it may be another user: the token is for this user's processes (ssh,
    sshd, a front end) and root's.
    """
    trusted = (os.geteuid(), 0)
    try:
        _check_place(path, trusted)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
            user = peer_of(sock)[1]
            if user is not None and user not in trusted:
                raise AdbgError(f"user {user} answers at {path}: nothing was sent", _FORWARD)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise AdbgError(
            f"no session answers at {path}: {error.strerror or error}",
            "is ssh still forwarding it, and `adbg run` running?",
        ) from None
    return Clear(sock)


def _check_place(path: str, trusted: Sequence[int]) -> None:
    state = os.stat(path)
    folder = os.path.dirname(os.path.realpath(path))
    around = os.stat(folder)
    if not stat.S_ISSOCK(state.st_mode):
        raise AdbgError(f"{path} is no socket", _FORWARD)
    for place, owner in ((path, state.st_uid), (folder, around.st_uid)):
        if owner not in trusted:
            raise AdbgError(f"{place} belongs to user {owner}: nothing was sent", _FORWARD)
    if around.st_mode & 0o022 and not around.st_mode & stat.S_ISVTX:
        raise AdbgError(f"other users may replace {path}: nothing was sent", f"chmod 700 {folder}")


def _run(command: Sequence[str], env: dict[str, str]) -> int:
    """The handlers are there before the command is: it may be heard from, and be sent a signal, before ``Popen`` has
    returned. A handler is not inherited as an ignored signal is; one that was ignored (nohup) stays so for both.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    for number in (*FROM_THE_TERMINAL, *PASSED_ON):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on if number in PASSED_ON else lambda _number, _frame: None)
    try:
        started.append(subprocess.Popen(list(command), env=env, close_fds=False))
    except OSError as error:
        raise CommandError(f"cannot start {command[0]}: {error.strerror}", "give its path, or check PATH") from None
    for earlier in early:
        started[0].send_signal(earlier)
    sys.stdout.flush()
    return started[0].wait()
