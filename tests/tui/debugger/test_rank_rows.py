"""When a collective that waits for a stopped rank gives up: what is counted down."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from adbg.engine.protocol.messages import CollectiveAt, GroupTimeout, RankState, TimeoutSetting
from adbg.tui.debugger.job.ranks import Life, Rank
from adbg.tui.debugger.job.rows import _time_left

NOW = 1000.0
OWN, DAY = 60.0, 86_400.0


def left(
    began: float | None,
    stood_since: float | None = 990.0,
    raised_since: float = 980.0,
    running: bool = True,
    life: Life = Life.RUNNING,
    **facts: Any,
) -> tuple[float | None, bool]:
    """Of a rank that told two seconds ago of a collective that began at ``began`` (None: they are not followed)."""
    at = None if began is None else CollectiveAt("all_reduce", 1, "0", running, NOW - 2 - began)
    row = GroupTimeout("torch", "0", "gloo", **{"seconds": DAY, "own": OWN, "adjustable": True, **facts})
    if row.seconds != row.own:
        row = replace(row, settings=[TimeoutSetting(DAY, NOW - 2 - raised_since)])
    process: Any = SimpleNamespace(state_at=NOW - 2)
    return _time_left(Rank(0, process, life, RankState(collective=at, timeouts=[row]), 0.0, False), stood_since, NOW)


def test_one_that_began_before_keeps_its_time() -> None:
    assert left(began=970.0) == (OWN - 30, False)


def test_one_that_began_after_waits_a_day() -> None:
    assert left(began=985.0) == (DAY - 15, False)


def test_what_the_front_end_asked_for_later_changes_nothing() -> None:
    """The agent's own word of when it was set: the front end's clock had it minutes late, and counted to nothing."""
    settings = [TimeoutSetting(90.0, 28.0), TimeoutSetting(DAY, 3.0)]  # of 998: set at 970 and 995
    row = GroupTimeout("torch", "0", "gloo", DAY, OWN, True, settings)
    assert [row.of_one_begun(ago) for ago in (29.0, 28.0, 4.0, 2.0)] == [OWN, 90.0, 90.0, DAY]


def test_never_less_than_nothing() -> None:
    assert left(began=900.0) == (0.0, False)


def test_where_collectives_are_not_followed_it_is_the_earliest() -> None:
    assert left(None, stood_since=990.0, raised_since=995.0) == (OWN - 10, True), "raised too late, perhaps"
    assert left(None, stood_since=990.0, raised_since=900.0) == (DAY - 10, True)


def test_what_cannot_be_raised() -> None:
    assert left(None, seconds=30.0, own=30.0, adjustable=False) == (20.0, True)


@pytest.mark.parametrize(
    "facts", [{"stood_since": None}, {"running": False}, {"life": Life.STOPPED}, {"life": Life.LOST}]
)
def test_nobody_waits(facts: dict[str, Any]) -> None:
    assert left(985.0, **facts) == (None, False)
