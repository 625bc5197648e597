"""What a process learns only while it runs: its rank, its process groups, where its record lies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from adbg.engine.session.observers import Observer

if TYPE_CHECKING:
    from adbg.engine.agent.agent import Agent

AGAIN = 0.2  # seconds between two looks: 9 us of a backward call's begin


class LateFacts(Observer):
    """Has the agent look, but not 3,000 times a second, at what a process learns only while it runs."""

    patient = True

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._due = 0.0

    def before_backward(self) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + AGAIN
            self._agent.look_again()
            self._agent.record.look_again()
            self._agent.ranks.groups.look_again()

    def before_stop(self) -> None:
        self._agent.look_again()
