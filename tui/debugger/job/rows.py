"""The ranks as rows of what front ends show, with the time that a waiting one has left."""

from __future__ import annotations

import time

from adbg.tui.debugger.job.ranks import Life, Rank, Ranks
from adbg.tui.debugger.job.stop_all import StopAll
from adbg.tui.debugger.process import Process
from adbg.tui.text.ranks import RankRow

SLACK = 1.0  # seconds before a stop in which the collective that it keeps waiting may have begun


def rank_rows(ranks: Ranks, stop_all: StopAll, current: Process | None) -> list[RankRow]:
    """Every rank, also those that ended, in order."""
    now = time.monotonic()
    rows = []
    for member in ranks.members():
        process = member.process
        left, earliest = _time_left(member, stop_all.since, now)
        rows.append(
            RankRow(
                member.rank,
                process.number,
                process.info.pid,
                member.life.value,
                process is current,
                member.stopping,
                member.state,
                process.stop,
                member.age,
                left,
                earliest,
            )
        )
    return rows


def _time_left(member: Rank, stood_since: float | None, now: float) -> tuple[float | None, bool]:
    """Seconds until a collective that waits for a stopped rank gives up, and whether that is only the earliest that it
    can: where collectives are not followed, it may have begun just before the stop."""
    state = member.state
    if member.life is not Life.RUNNING or state is None or not state.timeouts or stood_since is None:
        return None, False
    at = state.collective
    told = member.process.state_at
    if at is None:  # what a stop keeps waiting began about when it came
        began = told - (stood_since - SLACK)
        return max(0.0, min(row.of_one_begun(began) for row in state.timeouts) - (now - stood_since)), True
    if not at.running:
        return None, False
    rows = [row for row in state.timeouts if row.group == at.group] or state.timeouts
    return max(0.0, min(row.of_one_begun(at.since) for row in rows) - (at.since + now - told)), False
