"""The user's keyboard, passed to the program while it runs in the foreground of the REPL. Main thread only.

The terminal is in "cbreak" without echo: keys go to the program's own terminal, which echoes them. Ctrl-C still is
a signal to adbg.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
from collections.abc import Iterator

SUSPEND = b"\x1a"  # would suspend the program with no way to continue it


@contextlib.contextmanager
def keys_for_program(fd: int) -> Iterator[None]:
    """Within this block ``fd`` gives single keys and does not echo. Restored whatever happens."""
    try:
        before = termios.tcgetattr(fd)
    except termios.error:  # no terminal
        yield
        return
    mode = termios.tcgetattr(fd)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    off = os.fpathconf(fd, "PC_VDISABLE")
    mode[6][termios.VSUSP] = mode[6][termios.VQUIT] = bytes([off])
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, mode)
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def read_keys(fd: int, seconds: float) -> bytes | None:
    """What was typed within ``seconds``; b"" for nothing, None at the end of the input."""
    try:
        ready, _, _ = select.select([fd], [], [], seconds)
        if not ready:
            return b""
        data = os.read(fd, 4096)
    except InterruptedError:
        return b""
    except OSError:
        return None
    return data.replace(SUSPEND, b"") if data else None


def terminal_size() -> tuple[int, int] | None:
    """(rows, columns) of the user's terminal, None without one."""
    try:
        size = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ is not None else 1)
    except (OSError, ValueError):
        return None
    return (size.lines, size.columns) if size.lines and size.columns else None
