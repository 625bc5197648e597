"""One process of the program being debugged: its connection, where it stands, what it said about itself.

Changed only by ``Debugger`` under its lock; reading single attributes from other threads is safe (they are
replaced, never mutated).
"""

from __future__ import annotations

from adbg.engine.protocol.messages import Framework, ProcessInfo, StackFrame
from adbg.engine.types import NodeStop
from adbg.tui.debugger.client import Client


class Process:
    """``number`` counts from 1 in order of joining; 1 is the main process unless the command is a launcher."""

    def __init__(self, number: int, client: Client, info: ProcessInfo) -> None:
        self.number = number
        self.client = client
        self.info = info
        self.stop: NodeStop | None = None
        self.stop_serial = 0  # grows with every stop of this process
        self.configured = False  # its script was let go
        self.alive = True
        self.frameworks: tuple[Framework, ...] = tuple(info.frameworks)
        self.backwards = 0  # backward calls it announced
        self.frames: tuple[StackFrame, ...] | None = None  # of this stop, innermost first; None: not asked yet
        self.frames_note = ""
        self.frame = 0  # selected one

    @property
    def main(self) -> bool:
        return self.info.main

    @property
    def rank(self) -> int:
        return self.info.rank

    @property
    def title(self) -> str:
        """ "process 2 (rank 1, pid 4711)"."""
        return f"process {self.number} (rank {self.rank}, pid {self.info.pid})"

    def parked(self, stop: NodeStop) -> None:
        self.stop = stop
        self.stop_serial += 1
        self.forget_frames()

    def resumed(self) -> None:
        self.stop = None
        self.forget_frames()

    def forget_frames(self) -> None:
        self.frames = None
        self.frames_note = ""
        self.frame = 0
