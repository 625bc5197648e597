"""One process of the program being debugged: its connection, where it stands, what it reported about itself.

Changed under the model's lock only; any thread may read single attributes (they are replaced, never mutated).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.protocol.messages import Framework, ProcessInfo
from adbg.engine.types import NodeStop
from adbg.tui.debugger.client import Client
from adbg.tui.debugger.stop_view import StopView

if TYPE_CHECKING:
    from adbg.tui.debugger.model import Model


class Process:
    """``number`` counts from 1 in order of joining; 1 is the main process unless the command is a launcher."""

    def __init__(self, number: int, client: Client, info: ProcessInfo, model: Model) -> None:
        self.number = number
        self.client = client
        self.info = info
        self.stop: NodeStop | None = None
        self.stop_serial = 0  # grows with every stop of this process
        self.configured = False  # its script was let go
        self.alive = True
        self.ended = False  # its program said that it ends
        self.frameworks: tuple[Framework, ...] = tuple(info.frameworks)
        self.view = StopView(self, model)

    @property
    def main(self) -> bool:
        return self.info.main

    @property
    def rank(self) -> int:
        """0 also where it is not known."""
        return self.info.rank or 0

    @property
    def title(self) -> str:
        """ "process 2 (rank 1, pid 4711)"; without a rank that is not known."""
        rank = "" if self.info.rank is None else f"rank {self.info.rank}, "
        return f"process {self.number} ({rank}pid {self.info.pid})"

    def parked(self, stop: NodeStop) -> None:
        self.stop = stop
        self.stop_serial += 1
        self.view.forget_frames()

    def resumed(self) -> None:
        self.stop = None
        self.view.forget_frames()
