"""Taking calls on a listening socket until it is closed: a shortage of the system's, or a caller who hangs up at once,
must not end that."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable

PAUSE = 0.1  # seconds, after the system could not do it
_CLOSED = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)  # what ``accept`` says of a socket that was shut down or closed


def closed(error: OSError) -> bool:
    """Whether ``accept`` raised ``error`` because its socket is gone. Else the next call may do: waits a moment where
    the system is short of something."""
    if error.errno in _CLOSED:
        return True
    if error.errno != errno.ECONNABORTED:
        time.sleep(PAUSE)
    return False


def accept_all(listening: Callable[[], socket.socket], serve: Callable[[socket.socket], None], name: str) -> None:
    """Have ``serve`` called with each connection, on a thread of its own that is called ``name``. Returns when the
    socket is closed. Where no thread can be had the caller is hung up on."""
    while True:
        try:
            newcomer, _ = listening().accept()
        except OSError as error:
            if closed(error):
                return
            continue
        try:
            threading.Thread(target=serve, args=(newcomer,), name=name, daemon=True).start()
        except RuntimeError:  # "can't start new thread"
            newcomer.close()
            time.sleep(PAUSE)
