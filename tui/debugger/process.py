"""One process of the program being debugged: its connection, where it stands, what it reported about itself.

Changed under the model's lock only; any thread may read single attributes (they are replaced, never mutated).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from adbg.engine.protocol.messages import Framework, ProcessInfo, RankState
from adbg.engine.types import NodeStop
from adbg.tui.debugger.client import Client
from adbg.tui.debugger.stop_view import StopView

if TYPE_CHECKING:
    from adbg.tui.debugger.model import Model


_ANNOUNCED = 8  # processes


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
        self.said_end = False  # it said that it ends, and was not cut off
        self.pause_wanted = False  # asked to stop at its next node
        self.let_go = False  # and then asked not to: a stop may still be on its way
        self.timeout_held = 0.0  # seconds that its process groups were asked to wait at least
        self.state: RankState | None = None  # what it told last of itself
        self.state_at = 0.0  # when it told that
        self.changed_at = time.monotonic()  # when something of it changed
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
    def here(self) -> bool:
        """It is a process of this host, for certain: it dialled by itself, and its own number is the kernel's here. A
        host's name is not enough: hosts may share one, and a container has numbers of its own."""
        return self.info.host in ("", os.uname().nodename) and self.client.peer == self.info.pid

    @property
    def title(self) -> str:
        """ "process 2 (rank 1, pid 4711)"; without a rank that is not known, with the host where that is another."""
        rank = "" if self.info.rank is None else f"rank {self.info.rank}, "
        there = f" on {self.info.host}" if self.info.host not in ("", os.uname().nodename) else ""
        return f"process {self.number} ({rank}pid {self.info.pid}{there})"

    def arrival(self) -> str:
        """What is said as it joins; "" of the first process, and of those past the ninth."""
        if self.number == _ANNOUNCED + 1:
            return f"{self.title} has joined; further ones are not announced: `info processes` lists them"
        return f"{self.title} has joined" if 1 < self.number <= _ANNOUNCED else ""

    def resident(self) -> int:
        """Bytes of its memory; 0 where it cannot be told."""
        import psutil

        try:
            return int(psutil.Process(self.info.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def parked(self, stop: NodeStop) -> None:
        self.stop = stop
        self.stop_serial += 1
        self.changed_at = time.monotonic()
        self.view.forget_frames()

    def resumed(self) -> None:
        self.stop = None
        self.changed_at = time.monotonic()
        self.view.forget_frames()
