"""Calls that ran without a word are told in their order, whoever tells them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from adbg.engine.session.told_later import ToldLater


def test_what_one_thread_took_is_told_before_what_another_one_takes() -> None:
    """The one that took it first does not run for a while, as on a busy machine."""
    told: list[int] = []
    taken = threading.Event()
    waiting = [1]

    def take() -> Iterable[Any]:
        runs = list(waiting)
        waiting.clear()
        return runs

    def tell(run: Any) -> None:
        if run == 1:
            waiting.append(2)
            taken.set()
            time.sleep(0.3)
        told.append(run)

    problems = SimpleNamespace(defect=lambda what, error: told.append(error))
    session: Any = SimpleNamespace(notify=SimpleNamespace(brief_runs=[tell]), problems=problems)
    later = ToldLater(session)
    later.told_later(take)
    first = threading.Thread(target=later.gather)
    first.start()
    assert taken.wait(10)
    later.gather()
    first.join(10)
    assert told == [1, 2]
