"""``adbg join --pid``: processes of this host that run already join a session on another. No front end here: this
process gets into them, carries their connections, and goes when the session lets them go. Its end is their detach.
"""

from __future__ import annotations

import sys
import time

from adbg.engine.attach.target import examine
from adbg.engine.errors import AdbgError
from adbg.engine.launch.hosts.join import Joining, joined
from adbg.engine.protocol.messages import ProcessInfo
from adbg.tui.attach.jobs import ranks_of
from adbg.tui.attach.processes import look
from adbg.tui.attach.way_in import One, WayIn
from adbg.tui.debugger.client import Client

FAILED = 125
GLANCE = 0.1  # seconds


class FarEntry:
    """The processes that are brought in."""

    def __init__(self) -> None:
        self.way = WayIn(self._listens, self._failed, self._say)
        self.failed = 0

    def spoke(self, pid: int) -> None:
        """Its agent has said hello to the session."""
        one = self.way.known(pid)
        if one is not None and not one.hello.is_set():
            one.hello.set()
            self._say(f"process {pid} has joined the session; Ctrl-C here lets it go")

    def _listens(self, client: Client, info: ProcessInfo) -> None:
        client.close()
        self.failed += 1
        self._say(
            f"process {info.pid} called adbg.listen(): it waits to be attached to on this host, and is left alone"
        )

    def _failed(self, one: One) -> None:
        self.failed += 1
        self._say(str(one.error))

    @staticmethod
    def _say(text: str) -> None:
        print(f"adbg: {text}", file=sys.stderr, flush=True)


def join_running(asked: Joining, pid: int, job: bool) -> int:
    """Returns when the session has let all of them go; the exit status.

    Raises:
        AdbgError: the session cannot be reached, or there is no such process.
    """
    entry = FarEntry()
    pids = [pid]
    if job:
        pids = [seen.pid for seen in ranks_of(look(), pid)]
        if not pids:
            raise AdbgError(f"no rank was found below process {pid}", "`adbg attach` lists the processes")
    else:
        examine(pid)
    with joined(asked, entry.spoke) as way:
        entry.way.session_file = way.session_file
        for each in pids:
            entry.way.begin(each)
        try:
            while entry.way.entering or way.passage.speaking:
                time.sleep(GLANCE)
        finally:
            entry.way.stop(wait=True)
    return FAILED if entry.failed == len(pids) else 0
