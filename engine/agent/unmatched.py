"""Breakpoints that take no node are told of after the first backward, not when the training has ended."""

from __future__ import annotations

from adbg.engine.agent.events import Client
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running
from adbg.engine.session.session import Session
from adbg.engine.types import BriefRun


class UnmatchedBreakpoints(Observer):
    """Compares each breakpoint with the nodes of one outermost backward, nested ones included; inactive after that."""

    def __init__(self, session: Session, client: Client) -> None:
        self._session = session
        self._client = client

    @property
    def active(self) -> bool:
        return self._session.table.uncompared

    def backward_begin(self, running: Running) -> None:
        self._session.table.meet(running.call)

    def backward_end(self, running: Running, us: float, error: BaseException | None) -> None:
        if running.call.depth == 0:
            self._compare()

    def brief_end(self, run: BriefRun) -> None:
        self._compare()

    def _compare(self) -> None:
        for state in self._session.change(self._session.table.compared):
            self._client.event(p.BreakpointChanged("unmatched", state))
