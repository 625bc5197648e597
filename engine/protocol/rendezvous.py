"""How a front end and an agent find and trust each other.

Two ways in, one protocol:

* ``adbg run``: the front end listens on a unix socket in a private folder (0700, socket 0600) and writes
  ``session.json`` (0600) beside it. The debuggee's environment carries one variable, ``ADBG_SESSION`` = path of that
  file. The agent dials out and sends ``adbg/hello`` with the token; the client answers with ``initialize`` and the same
  token.
* ``adbg.listen()``: the agent listens on ``<runtime dir>/<pid>/agent.sock`` and writes ``session.json`` beside it;
  ``adbg attach PID`` reads that file.

No TCP port is ever opened.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from adbg.engine.errors import AdbgError

SESSION_VARIABLE = "ADBG_SESSION"  # path of session.json; inherited by the program's children
MAIN_VARIABLE = "ADBG_MAIN"  # "1" only in the launched process itself; the bootstrap removes it


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What the agent needs to know. ``run_dir`` "" records nothing."""

    socket: str
    token: str
    run_dir: str = ""
    stacks: bool = True
    engine_path: str = ""  # folder that holds the modules of adbg.engine
    package_path: str = ""  # folder that holds adbg/__init__.py


def new_token() -> str:
    """256 random bits, hex."""
    return secrets.token_hex(32)


def private_dir(prefix: str = "adbg-") -> Path:
    """A new folder with mode 0700, short enough that a socket path in it fits sun_path (108 bytes on Linux)."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if base and len(base) < 60 and os.path.isdir(base) and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    raise AdbgError("cannot create a folder for the debugger's socket", "set TMPDIR to a short, writable path")


def listen_dir(pid: int) -> Path:
    """Where the agent of process ``pid`` listens after ``adbg.listen()``."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    return Path(base) / f"adbg-{os.getuid()}" / str(pid)


def write_config(path: Path, config: SessionConfig) -> None:
    """Write ``config`` readable by its owner only."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(config), file)


def read_config(path: Path) -> SessionConfig:
    """Raises OSError or ValueError when the file is missing or is not a session file."""
    data = json.loads(path.read_text())
    known = {name: data[name] for name in SessionConfig.__slots__ if name in data}
    return SessionConfig(**known)
