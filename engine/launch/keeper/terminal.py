"""The pseudo-terminals of the program: made, read, sized and given up by the keeper.

``take_unread`` is used by the front end too.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios

from adbg.engine.launch.keeper.frames import MAX_FRAME

# Backspace erases a character, not a byte. termios has no name for it.
_IUTF8 = 0o40000 if sys.platform == "linux" else 0


def take_unread(terminal: int) -> bytes:
    """Take out of a terminal what was typed and waits there unread: whole lines, then the one not ended yet. Nothing
    where single keys are read (a crashed full-screen program: they mean nothing to anybody else)."""
    data = b""
    try:
        modes = termios.tcgetattr(terminal)
        if not modes[3] & termios.ICANON or not modes[3] & termios.ECHO:  # without echo: a password
            return b""
        single = termios.tcgetattr(terminal)
        single[3] &= ~termios.ICANON
        single[6][termios.VMIN], single[6][termios.VTIME] = 0, 0  # a read gives what there is
        try:
            termios.tcsetattr(terminal, termios.TCSANOW, single)
            while piece := os.read(terminal, 4096):
                data += piece
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
    except (termios.error, OSError):
        pass  # the program ended, or nothing waits
    return data.replace(b"\0", b"")  # an end of file that was typed


class Terminal:
    """One pty. ``slave`` stays open here while the program lives, so that closing all of its own descriptors is not
    taken for its end.
    """

    def __init__(self, kind: bytes, rows: int, cols: int) -> None:
        self.kind = kind
        self.drained = False  # everything the program wrote was read, as far as known
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        modes = termios.tcgetattr(self.slave)
        modes[0] |= _IUTF8
        modes[1] &= ~termios.OPOST  # "\n" stays "\n": the bytes are the program's own
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.resize(rows, cols)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def read(self) -> bytes | None:
        """What there is now, b"" for nothing, None at the end (no slave is open any more)."""
        pieces: list[bytes] = []
        size = 0
        while size < MAX_FRAME - 4096:  # the kernel hands out 4 KiB at a time
            try:
                piece = os.read(self.master, 4096)
            except BlockingIOError:
                self.drained = self.slave < 0
                break
            except OSError:
                piece = b""  # EIO
            if not piece:
                return b"".join(pieces) if pieces else None
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def release(self, controlling: bool) -> bytes:
        """The program is gone: only its descendants hold the terminal now. As a shell does, this process takes the
        foreground back: the kernel sends SIGHUP to the foreground group when the terminal's session leader, this
        process, ends. Returns what was typed and not read (only the foreground may read it).
        """
        unread = b""
        if self.slave >= 0:
            if controlling:
                os.tcsetpgrp(self.slave, os.getpgrp())
                unread = take_unread(self.slave)
            os.close(self.slave)
            self.slave = -1
            self.drained = False
        return unread

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1
