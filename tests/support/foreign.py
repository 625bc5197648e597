"""Another user of this host: a process of theirs that listens on a unix socket. Only root can be somebody else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

_LISTENS = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.setgroups([])
user = int(sys.argv[2])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
server.listen(8)  # who asks for the other end's user is told who called this
print("listening", flush=True)
peer, _ = server.accept()
heard = b""
while data := peer.recv(1 << 16):
    heard += data
print(heard, flush=True)
"""


@dataclass
class Foreigner:
    """Somebody else's process; ``path`` of its socket. The file is of the user who runs the test."""

    path: Path
    process: subprocess.Popen[str]

    def heard(self) -> str:
        """All that the first one who connected has said, as Python writes bytes."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def foreigner(path: Path, user: int = USER) -> Iterator[Foreigner]:
    """Listens at ``path`` until the block ends."""
    command = [sys.executable, "-c", _LISTENS, str(path), str(user)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "listening\n"
            yield Foreigner(path, process)
        finally:
            process.kill()
