"""Tells other processes of the machine that a thread of this one stands in the debugger: by the name that the kernel
has of a thread of adbg's (``/proc/PID/task/TID/comm``). Who waits for this process can tell it from one that hangs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import BreakpointState
from adbg.engine.session.observers import Observer
from adbg.engine.session.stop_point import PausedPoint

STOPPED = "adbg-stopped"  # the kernel keeps 15 bytes


class StoppedMark(Observer):
    """18 us as a stop begins, 8 as it ends; nowhere else than on Linux."""

    def __init__(self) -> None:
        self._named: tuple[str, str] | None = None  # (file, what it said)

    def stopped(self, point: PausedPoint, changed: Sequence[BreakpointState]) -> None:
        thread = next((each for each in threading.enumerate() if each.name == "adbg-reader"), None)
        if thread is None or self._named is not None:
            return
        file = f"/proc/{os.getpid()}/task/{thread.native_id}/comm"
        with suppress(OSError):
            with open(file) as known:
                before = known.read().rstrip("\n")
            with open(file, "w") as name:
                name.write(STOPPED)
            self._named = file, before

    def stop_over(self) -> None:
        named, self._named = self._named, None
        if named is not None:
            with suppress(OSError), open(named[0], "w") as name:  # the thread may be gone
                name.write(named[1])

    def abandon(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._named = None


def is_stopped(pid: int) -> bool:
    """Whether a thread of another process stands in the debugger. Raises OSError where it has ended."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError), open(f"/proc/{pid}/task/{thread}/comm") as name:
            if name.read().rstrip("\n") == STOPPED:
                return True
    return False
