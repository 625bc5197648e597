"""How long a thread waited for its turn, against what another one held it."""

from __future__ import annotations

import threading
import time

import pytest

from adbg.engine.session import parking
from adbg.engine.session.parking import Turn


def test_a_slow_machine_is_nobody_at_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system took the processor away between the look at the clock and the lock, which nobody had."""
    clock = iter(range(0, 10**12, 50_000))
    monkeypatch.setattr(parking, "perf_counter_ns", lambda: next(clock))
    turn = Turn()
    for _ in range(3):  # turns of one's own that are over are nobody else's either
        assert turn.take(lambda: turn.waited_ns) == 0


def test_what_another_thread_held_is_waited_for() -> None:
    turn, inside, leave = Turn(), threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert leave.wait(10)

    holder = threading.Thread(target=turn.take, args=(hold,))
    holder.start()
    assert inside.wait(10)
    threading.Timer(0.05, leave.set).start()
    begun = time.perf_counter_ns()
    waited = turn.take(lambda: turn.waited_ns)
    assert 0.04e9 < waited <= time.perf_counter_ns() - begun
    holder.join()
    assert turn.take(lambda: turn.waited_ns) == 0, "the next one did not wait"
