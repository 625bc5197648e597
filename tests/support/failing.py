"""A listening socket on which ``accept`` fails, as it does where the system is short of something."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

from support.patience import patience

ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED)


class Failing:
    """``sock``, but that each of ERRORS comes once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._left = [OSError(number, "for a test") for number in ERRORS]

    def accept(self) -> tuple[socket.socket, Any]:
        got = self._sock.accept()
        if self._left:
            got[0].close()
            raise self._left.pop(0)
        return got

    def use_up(self, address: Any) -> None:
        """Call until every error has come."""
        for _ in range(len(ERRORS) + 1):  # the first call comes to the ``accept`` of before
            with socket.socket(self._sock.family) as sock:
                sock.connect(address)
                time.sleep(0.05)
        end = time.monotonic() + patience(10)
        while self._left:
            assert time.monotonic() < end, "nobody accepts any more"
            time.sleep(0.01)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)
