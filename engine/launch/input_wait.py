"""Whether a program waits for what is typed at its terminal. Linux tells it; elsewhere the answer is always no.

``/proc/PID/syscall`` says which call the main thread is blocked in, and with which arguments; reading it neither stops
nor slows the program (10 us here). The kernel shows it to the parents of a process, and hides it from anybody else
where it is told to (``ptrace_scope``). A ``read`` counts of a terminal only; so does a ``select`` for descriptor 0
alone, which is how readline waits. A program that waits in ``poll`` for several things is not seen.
"""

from __future__ import annotations

import os
import platform
import termios
from typing import Literal

Wait = Literal["", "line", "secret"]
# Numbers of the system calls read, select (0: there is none) and pselect6.
_CALLS = {"x86_64": (0, 23, 270), "aarch64": (63, -1, 72)}.get(platform.machine())


def input_wait(pid: int) -> Wait:
    """ "line" while process ``pid`` waits for its terminal, "secret" where it has switched the echo off; "" else."""
    try:
        terminal = os.readlink(f"/proc/{pid}/fd/0")
        fd = _awaited(pid)
        if fd < 0 or not terminal.startswith("/dev/pts/"):
            return ""
        if fd and os.readlink(f"/proc/{pid}/fd/{fd}") not in (terminal, "/dev/tty"):
            return ""
        return "line" if _echoes(terminal) else "secret"
    except (OSError, ValueError, termios.error):
        return ""


def _awaited(pid: int) -> int:
    """The descriptor that the main thread waits for, -1 for none."""
    if _CALLS is None:
        return -1
    with open(f"/proc/{pid}/syscall") as file:
        words = file.read().split()
    if len(words) < 3 or not words[0].isdigit():  # "running"
        return -1
    number, first, second = int(words[0]), int(words[1], 16), int(words[2], 16)
    read, *selects = _CALLS
    if number == read:
        return first
    return 0 if number in selects and first == 1 and second else -1  # below 1: descriptor 0; a set to read from


def _echoes(terminal: str) -> bool:
    fd = os.open(terminal, os.O_RDONLY | os.O_NOCTTY)
    try:
        modes: list[int] = termios.tcgetattr(fd)[3:4]
    finally:
        os.close(fd)
    # readline has switched the echo off too, and echoes itself: it reads single keys, a password is a line
    return bool(modes[0] & termios.ECHO) or not modes[0] & termios.ICANON
