"""The agent of a process that ran before adbg came (``bootstrap/attach``), and that runs on when it has gone.

All that differs from a program that ``adbg run`` started: the agent is made late, on "adbg-attach", while the program
trains; and it leaves with its front end, by ``detach`` or because that was killed, and takes everything with it.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from adbg.engine import own_threads
from adbg.engine.agent import agent as agents
from adbg.engine.errors import AdbgError
from adbg.engine.flag import Flag
from adbg.engine.protocol.rendezvous import SessionConfig, read_config

LEAVING = 2.0  # seconds that the agent of a front end which is gone has to leave
_UNDER_WAY = (
    "a backward was running when adbg came: its own nodes run unseen, for they cannot be hooked from outside; one that "
    "it calls, or the next one, is the first that can stop"
)
_arriving = threading.Lock()  # of this process: two sessions that come at once are served one after the other


def arrive(session_file: str, dial: Callable[[], socket.socket], aside: Mapping[str, ModuleType]) -> None:
    """Serve the front end that ``dial`` connects to, unless it is served already (``session_file`` was handed in
    twice). ``aside``: what the program itself had imported as adbg, put back in the end.

    Raises AdbgError: another front end debugs this process; OSError, ValueError: there is no such session any more.
    """
    config = read_config(Path(session_file))
    own_threads.register(threading.current_thread())
    with _arriving:
        there = agents.current()
        if isinstance(there, LateAgent) and there.config.token != config.token:
            there.left.wait(LEAVING)  # its front end may have ended, or been killed, a moment ago
            there = agents.current()
        if there is None:
            agent = LateAgent(config, aside)
            try:
                agent.serve(dial(), hello=True)
            except BaseException:
                agent.let_go()
                raise
            return
    if there.config.token != config.token:
        raise AdbgError("another front end debugs this process", "end that one first: it has `detach`")


class LateAgent(agents.Agent):
    """Leaves when its client is gone."""

    late = True

    def __init__(self, config: SessionConfig, aside: Mapping[str, ModuleType]) -> None:
        self._aside = aside
        self._leaving = threading.Lock()
        self.left = Flag()
        super().__init__(config, main=False)

    def joined(self) -> None:
        if any(backend.under_way for backend in self.session.backends):
            self.session.problems.problem(_UNDER_WAY)

    def let_go(self) -> None:
        with self._leaving:
            if not self.left.is_set():
                self.leave()
                self.left.set()

    def leave(self) -> None:
        """Take everything of adbg's out of the process."""
        super().leave()
        if self._aside:
            for name in [name for name in list(sys.modules) if name.partition(".")[0] == "adbg"]:
                del sys.modules[name]
            sys.modules.update(self._aside)
