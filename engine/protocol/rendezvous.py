"""How a front end and an agent find and trust each other.

Two ways in, one protocol:

* ``adbg run``: the front end listens on a unix socket in a private folder (0700, socket 0600) and writes
  ``session.json`` (0600) beside it. The debuggee's environment carries one variable, ``ADBG_SESSION`` = path of that
  file. The program may live longer than the front end: the agent trusts folder, file and socket only where no other
  user could have made them, dials out, and sends ``adbg/hello`` with the token where this user's process took the
  call; the client answers with ``initialize`` and the same token.
* ``adbg.listen()``: the agent listens on ``<runtime dir>/<pid>/agent.sock`` and writes ``session.json`` beside it;
  ``adbg attach PID`` reads that file, and trusts it only where no other user could have made it.

On another host the socket is one that ssh forwards, or one whose connections go through TLS to a port that was asked
for (``engine/launch/hosts``): agents dial unix sockets only. No TCP port is opened unless ``--listen`` asks for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adbg.engine.errors import AdbgError

SESSION_VARIABLE = "ADBG_SESSION"  # path of session.json; inherited by the program's children
KEEP = 256 << 20  # bytes of copies of gradients
SOCKET = "client.sock"  # the front end's, beside session.json
CODE = "attach.code"  # what a process that is attached to loads adbg from, beside session.json
LONGEST = 107  # bytes of a socket's path on Linux
MAIN_VARIABLE = "ADBG_MAIN"  # "1" only in the launched process itself; the bootstrap removes it


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What the agent needs to know. ``run_dir`` "" records nothing; ``record_limit``: bytes that each process may keep
    there, 0 for any number; ``keep_gradients``: bytes of copies of the last stops' gradients, 0 for none. ``address``
    ("HOST:PORT") and ``fingerprint`` (of its certificate) are for ``adbg join`` on other hosts: agents use ``socket``.
    """

    socket: str
    token: str
    run_dir: str = ""
    stacks: bool = True
    engine_path: str = ""  # folder that holds the modules of adbg.engine
    package_path: str = ""  # folder that holds adbg/__init__.py
    record_limit: int = 2 << 30
    keep_gradients: int = KEEP
    address: str = ""
    fingerprint: str = ""


def new_token() -> str:
    """256 random bits, hex."""
    return secrets.token_hex(32)


def private_dir(prefix: str = "adbg-") -> Path:
    """A new folder with mode 0700, short enough that a socket path in it fits sun_path (108 bytes on Linux)."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(base) < 60 and os.path.isdir(base) and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    raise AdbgError("cannot create a folder for the debugger's socket", "set TMPDIR to a short, writable path")


def session_dir(path: Path) -> Path:
    """The folder ``path`` for a session, made if need be; what an ended session left there is removed.

    Raises:
        AdbgError: it is another user's or open to others, holds something else, or a session runs there.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        _check_own(path, path.lstat(), stat.S_ISDIR)
        if len(os.fsencode(path / SOCKET)) > LONGEST:
            raise AdbgError(f"the path of {path} is too long for a socket in it", "choose a folder with a shorter path")
        _check_unused(path / SOCKET)
        for name in (SOCKET, CODE, "session.json"):
            (path / name).unlink(missing_ok=True)
    except OSError as error:
        raise AdbgError(f"cannot use {path} for the session: {error.strerror}", "choose another folder") from None
    return path


def _check_unused(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return
    raise AdbgError(f"a session runs in {path.parent}", "end that one, or choose another folder")


def listen_dir(pid: int) -> Path:
    """Where the agent of process ``pid`` listens after ``adbg.listen()``."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    return Path(base) / f"adbg-{os.getuid()}" / str(pid)


def trusted_config(pid: int) -> SessionConfig:
    """The session of a process that listens, where nobody but this user could have made it: neither folder, file nor
    socket is a link, another user's, or open to others.

    Raises:
        AdbgError: somebody else may have.
        OSError or ValueError: there is none.
    """
    folder = listen_dir(pid)
    _check_own(folder.parent, folder.parent.lstat(), stat.S_ISDIR)
    _check_own(folder / "agent.sock", (folder / "agent.sock").lstat(), stat.S_ISSOCK)
    return replace(_own_config(folder / "session.json"), socket=str(folder / "agent.sock"))


def read_config(path: Path) -> SessionConfig:
    """The session of that file, where nobody but this user could have made it; its socket lies beside it, or is gone
    with its front end.

    Raises:
        AdbgError: somebody else may have.
        OSError or ValueError: there is none.
    """
    config = _own_config(path)
    if Path(config.socket).parent != path.parent:
        raise AdbgError(f"the socket that {path} names does not lie beside it: not used", "start the program again")
    with contextlib.suppress(FileNotFoundError):
        _check_own(Path(config.socket), os.lstat(config.socket), stat.S_ISSOCK, 0)
    return config


def _own_config(path: Path) -> SessionConfig:
    _check_own(path.parent, path.parent.lstat(), stat.S_ISDIR)
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8") as file:
        _check_own(path, os.fstat(fd), stat.S_ISREG)
        return _config_of(json.load(file))


def _check_own(path: Path, state: os.stat_result, kind: Callable[[int], bool], closed: int = 0o077) -> None:
    if state.st_uid != os.geteuid():
        raise AdbgError(f"{path} belongs to user {state.st_uid}: not used", "ask that user what it is")
    if not kind(state.st_mode):
        raise AdbgError(f"{path} is not what adbg makes there: not used", "remove it, then start the program again")
    if state.st_mode & closed:
        raise AdbgError(f"other users may enter {path}: not used", "remove it, then start the program again")


def check_peer(sock: socket.socket, pid: int) -> None:
    """Raises AdbgError when another user's process, or not process ``pid``, is at the other end (where the system
    tells)."""
    peer, user = peer_of(sock)
    if user not in (os.geteuid(), None) or peer not in (pid, 0):  # 0: of another pid namespace
        raise AdbgError(
            f"process {peer} of user {user} answers in place of process {pid}: not used",
            "call adbg.listen() again, in the process to be debugged",
        )


def peer_of(sock: socket.socket) -> tuple[int, int | None]:
    """(process, user) at the other end of a unix socket; who listens is the one who began to. (0, None) where the
    system does not tell. Raises OSError."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return 0, None
    pid, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return pid, user


def peer_pid(sock: socket.socket) -> int:
    """The process at the other end: what carries the connection, where the agent is on another host. 0: not known."""
    try:
        return peer_of(sock)[0]
    except OSError:
        return 0


def write_config(path: Path, config: SessionConfig) -> None:
    """Write ``config`` readable by its owner only."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(config), file)


def copied_config(path: Path) -> SessionConfig:
    """A session file that was brought here from another host.

    Raises:
        AdbgError: it is another user's, or others may read the token in it.
        OSError or ValueError: there is none.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8") as file:
        state = os.fstat(fd)
        if state.st_uid == os.getuid() and stat.S_ISREG(state.st_mode) and state.st_mode & 0o077:
            raise AdbgError(f"other users may read the token in {path}: not used", f"chmod 600 {path}")
        _check_own(path, state, stat.S_ISREG)
        return _config_of(json.load(file))


def _config_of(data: Any) -> SessionConfig:
    if not isinstance(data, dict):
        raise ValueError("not a session file")
    known = {name: data[name] for name in SessionConfig.__slots__ if name in data}
    return SessionConfig(**known)
