"""``adbg.listen()``: the agent waits for ``adbg attach``. It accepts on "adbg-listener".

The socket lies in a folder of mode 0700 that belongs to the user, has mode 0600, and wants the token that only
``session.json`` (0600) beside it tells. No TCP port is opened.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import socket
import stat
import sys
import threading
import time
from pathlib import Path

from adbg.engine.agent import agent as agents
from adbg.engine.agent.client import Client
from adbg.engine.descriptors import Own, lifted, never_freed
from adbg.engine.errors import AdbgError
from adbg.engine.protocol.accepting import closed
from adbg.engine.protocol.rendezvous import SessionConfig, listen_dir, new_token, write_config

STRANGER = 10.0  # seconds to say the token
WAITING = 8  # strangers at a time; the oldest goes first
TICK = 1.0  # seconds between two looks at them

_listener: Listener | None = None
_lock = threading.Lock()


def listen() -> None:
    """Open the socket once per process; a forked child opens its own. Under ``adbg run`` there is a front end already.

    Failure is one line on stderr, never an exception in the program.
    """
    global _listener
    with _lock:
        if _listener is not None and _listener.pid == os.getpid():
            return
        if agents.current() is not None:
            return
        try:
            _listener = Listener(listen_dir(os.getpid()))
        except (OSError, AdbgError) as error:
            print(f"adbg: cannot listen: {error}", file=sys.stderr)


class Listener:
    """The socket and the thread that accepts on it. Who connects and does not say the token within STRANGER seconds is
    hung up on, and keeps nobody out meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self.folder = folder
        _make_private(folder.parent)
        remove_stale(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)  # of a dead process that had our pid
        folder.mkdir(mode=0o700)
        path = folder / "agent.sock"
        self._own = Own(lifted(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()))
        self._sock = socket.socket(fileno=self._own.number)
        self._sock.settimeout(None)  # whatever the program's default is
        never_freed(self._sock)
        try:
            self._sock.bind(str(path))
            os.chmod(path, 0o600)
            self._sock.listen(64)
            self.config = SessionConfig(socket=str(path), token=new_token(), stacks=False)
            write_config(folder / "session.json", self.config)
        except OSError:
            self._own.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.agent = agents.Agent(self.config)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.close)
        threading.Thread(target=self._accept, name="adbg-listener", daemon=True).start()

    def _accept(self) -> None:
        strangers: list[tuple[float, Client]] = []
        while True:
            try:
                sock = self._next(TICK if strangers else None)
            except OSError as error:
                if closed(error):
                    return
                sock = None
            now = time.monotonic()
            if sock is not None:
                try:
                    strangers.append((now, self.agent.serve(sock)))
                except (OSError, RuntimeError):  # no descriptor or no thread for it
                    sock.close()
            strangers = [each for each in strangers if not (each[1].initialized or each[1].over.is_set())]
            patient = [each for each in strangers if now - each[0] < STRANGER][-WAITING:]
            for each in strangers:
                if each not in patient:
                    each[1].connection.hang_up()
            strangers = patient

    def _next(self, seconds: float | None) -> socket.socket | None:
        """Who connects within ``seconds``. Raises OSError when the socket is gone. Not by ``accept`` alone: that would
        go on with a socket that the program has closed, and then with what it has under that number."""
        self._own.check()
        poll = select.poll()
        poll.register(self._own.number, select.POLLIN)
        if not poll.poll(None if seconds is None else seconds * 1000):
            return None
        self._own.check()
        return self._sock.accept()[0]

    def _forked(self) -> None:
        self._own.close()

    def close(self) -> None:
        """Take the socket away. In a forked child it is the parent's: left alone."""
        if os.getpid() == self.pid:
            self._own.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def _make_private(folder: Path) -> None:
    """The folder of all of this user's sockets; refused when it is another's or open to others."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        raise AdbgError(f"{folder} belongs to another user", "set XDG_RUNTIME_DIR to a private folder")
    if stat.S_IMODE(state.st_mode) != 0o700:
        folder.chmod(0o700)


def remove_stale(folder: Path) -> None:
    """Remove the folders of processes that are gone (killed, so that their own clean-up did not run)."""
    for entry in folder.iterdir():
        if entry.name.isdigit() and not _alive(int(entry.name)):
            shutil.rmtree(entry, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
