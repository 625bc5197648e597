"""A process that joins while settings change: what it was sent makes them the present ones."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger.settings import Sent, Settings

TEN = protocol.Vlog("10", "", False)
MODULE = protocol.Vlog("backward=11", "", False)
LINE = protocol.Vlog("3", "train.py:8", False)


class Agent:
    """What an agent does with the settings, from the requests alone."""

    def __init__(self) -> None:
        self.client = self
        self.title = "rank 0"
        self.error_stops = True
        self.vlog: list[protocol.Vlog] = []
        self.all_frames = False
        self.diagnosis: protocol.Diagnose | None = None
        self.asked: list[Any] = []

    def request(self, asked: Any) -> Any:
        self.asked.append(asked)
        if isinstance(asked, protocol.SetExceptionBreakpoints):
            self.error_stops = asked.filters == ["error"]
        elif isinstance(asked, protocol.Frames):
            self.all_frames = asked.all
        elif isinstance(asked, protocol.Diagnose):
            self.diagnosis = asked if asked.action == "start" else None
        elif isinstance(asked, protocol.Vlog):
            if asked.levels == "off":
                self.vlog = []
            else:
                self.vlog.append(asked)
        return protocol.Breakpoints([])


def settings() -> Settings:
    return Settings(cast(Any, SimpleNamespace(lock=threading.RLock(), notice=print)), False)


STATES = [
    Sent(0, error_stops, vlog, all_frames, protocol.Diagnose("start") if all_frames == error_stops else None)
    for error_stops in (True, False)
    for vlog in ((), (TEN,), (TEN, MODULE), (LINE, TEN), (MODULE,))
    for all_frames in (False, True)
]


@pytest.mark.parametrize("first", STATES)
@pytest.mark.parametrize("then", STATES)
def test_settings_that_change_meanwhile_are_the_ones_it_has(first: Sent, then: Sent) -> None:
    agent, given = Agent(), settings()
    earlier: Sent | None = None
    for wanted in (first, then, first):
        given.send(cast(Any, agent), wanted, earlier)
        earlier = wanted
        assert (agent.error_stops, tuple(agent.vlog), agent.all_frames, agent.diagnosis) == wanted[1:]


def test_what_did_not_change_is_not_sent_twice() -> None:
    agent, given = Agent(), settings()
    wanted = Sent(0, True, (TEN,), False)
    given.send(cast(Any, agent), wanted, None)
    given.send(cast(Any, agent), wanted._replace(vlog=(TEN, MODULE)), wanted)
    assert [asked for asked in agent.asked if not isinstance(asked, protocol.SetFunctionBreakpoints)] == [TEN, MODULE]
