"""What each rank does now: an answer that came too late for one question is not taken for that of the next."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from adbg.engine.protocol.messages import RankState
from adbg.tui.debugger.job.ranks import Ranks


class Asked:
    """A process whose agent answers when it is told to."""

    def __init__(self) -> None:
        self.configured = True
        self.state: RankState | None = None
        self.state_at = self.changed_at = 0.0
        self.client = self
        self.sent: list[Future[RankState]] = []

    def send(self, arguments: object) -> Future[RankState]:
        self.sent.append(Future())
        return self.sent[-1]


class At(Future[RankState]):
    """Answered at once."""

    def __init__(self, backward: int) -> None:
        super().__init__()
        self.set_result(RankState(backward))


def ranks(process: Any) -> Ranks:
    model: Any = SimpleNamespace(lock=threading.RLock(), tell=lambda event: None)
    made = Ranks(model)
    made.connected = lambda: {0: process}  # type: ignore[method-assign]
    return made


def test_a_late_answer_is_of_then() -> None:
    process = Asked()
    asked = ranks(process)
    asked.ask_once(0.0)
    assert process.state is None and len(process.sent) == 1, "busy, for now"
    asked.ask_once(0.0)
    assert len(process.sent) == 1, "it is not asked again while it is"
    process.sent[0].set_result(RankState(1))
    process.send = lambda arguments: At(5)  # type: ignore[method-assign]
    asked.ask_once()
    assert process.state is not None and process.state.backward == 5
