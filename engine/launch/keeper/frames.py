"""What the keeper and the front end say to each other; loaded by both.

Frames, both ways, over one unix stream socket: 1 byte kind, 4 bytes length (big endian), payload.

=========== ======= ==========================================================
front end → START   marshal of the dict that ``Keeper.start`` reads
            STDIN   bytes to type (mode "pty")
            RESIZE  rows, cols (2 x u16)
            SIGNAL  number (u8), whole process group (bool)
            DRAIN   any payload: hand on what the program has written by now, then say so
→ front end STARTED pid (u32)
            FAILED  errno (i32), then text: the program could not be started
            STDOUT  bytes (in mode "pty" both streams)
            STDERR  bytes
            DRAINED the payload of DRAIN
            NOTE    text for the user: the output is no longer recorded, ...
            EXIT    code (i32), signal (u8): one of them is -1 or 0; then what was typed and not read
=========== ======= ==========================================================
"""

from __future__ import annotations

import signal
import struct

START, STDIN, RESIZE, SIGNAL, DRAIN = b"S", b"i", b"w", b"s", b"d"
STARTED, FAILED, STDOUT, STDERR, DRAINED, NOTE, EXIT = b"p", b"f", b"o", b"e", b"D", b"n", b"x"
HEADER = struct.Struct(">cI")
MAX_FRAME = 1 << 16  # bytes of STDIN, STDOUT, STDERR
GROUP_SIGNALS = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT, signal.SIGKILL, signal.SIGWINCH}
)


def frame(kind: bytes, payload: bytes) -> bytes:
    """One frame."""
    return HEADER.pack(kind, len(payload)) + payload


def take_frame(inbox: bytearray) -> tuple[bytes, bytes] | None:
    """Kind and payload of the first frame, taken out of what was received; None while it is not complete."""
    if len(inbox) < HEADER.size:
        return None
    kind, length = HEADER.unpack_from(inbox)
    end = HEADER.size + length
    if len(inbox) < end:
        return None
    payload = bytes(inbox[HEADER.size : end])
    del inbox[:end]
    return kind, payload
