"""Starts a command whose Python processes join a debugging session on another host. Runs in ``adbg join``, which stays
beside the command: it carries its connections, passes signals on, and ends as the command ends.

The command gets this process's own terminal and environment, with the two variables by which adbg gets in
(``launch.program_environment``). Its processes dial a unix socket of this host: one that ssh forwards, or one that
``tunnel.Passage`` makes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.launch.hosts.tunnel import Carrier, Clear, Passage, dial, parse_address
from adbg.engine.launch.launch import prepare_session, program_environment
from adbg.engine.protocol.rendezvous import SOCKET, SessionConfig, copied_config, private_dir

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
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
    folder = private_dir("adbg-join-")
    way: Joined | None = None
    try:
        way = Joined(folder, asked, on_peer)
        yield way
    finally:
        if way is not None:
            way.passage.close()
        shutil.rmtree(folder, ignore_errors=True)


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
    if os.path.exists(config.socket):
        return config.socket, ""
    if config.address:
        return "", config.address
    raise CommandError(
        f"{config.socket} is not on this host, and the session has no port open",
        f"forward it: ssh -N -L /PATH/job.sock:{config.socket} HOST, then adbg join --via /PATH/job.sock …",
    )


def _unix(path: str) -> Clear:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise AdbgError(
            f"no session answers at {path}: {error.strerror}", "is ssh still forwarding it, and `adbg run` running?"
        ) from None
    return Clear(sock)


def _run(command: Sequence[str], env: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(list(command), env=env, close_fds=False)
    except OSError as error:
        raise CommandError(f"cannot start {command[0]}: {error.strerror}", "give its path, or check PATH") from None
    for number in FROM_THE_TERMINAL:
        signal.signal(number, signal.SIG_IGN)
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: process.send_signal(number))
    sys.stdout.flush()
    return process.wait()
