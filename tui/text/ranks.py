"""The ranks of a job in words: where each is, what it waits for, how long its group waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adbg.engine.names import ranks_text
from adbg.engine.protocol.messages import CollectiveAt, GroupTimeout, RankState
from adbg.engine.types import NodeStop, StopReason
from adbg.tui.text.quantities import size


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank as it is shown. ``life``: "running", "stopped", "exited" or "lost"."""

    rank: int
    number: int  # of its process
    pid: int
    life: str
    shown: bool  # the current process
    stopping: bool
    state: RankState | None
    stop: NodeStop | None
    age: float | None
    gives_up: float | None  # seconds until its collective fails, or could; None: it does not wait, or not known
    at_the_earliest: bool = False  # it may have begun to wait later than that


COLUMNS = (
    "", "rank", "process", "pid", "state", "backward", "iteration", "node", "collective", "memory", "age",
    "gives up in",
)  # fmt: skip


def seconds_text(seconds: float | None) -> str:
    """ "0.4 s", "12 s", "3 min", "23 h"."""
    if seconds is None:
        return ""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def collective_text(at: CollectiveAt | None) -> str:
    """ "all_reduce #12", of another group than the first "all_reduce #12 in tp"."""
    if at is None:
        return ""
    group = "" if at.group in ("", "0", "default_pg", "_default_pg") else f" in {at.group}"
    return f"{at.op} #{at.seq}{group}"


def state_text(row: RankRow) -> str:
    """ "breakpoint", "held", "running", "waits in all_reduce #12", "exited"."""
    if row.life == "stopped":
        reason = row.stop.reason if row.stop is not None else None
        if row.shown or reason not in (StopReason.PAUSE, StopReason.STEP):
            return f"stopped: {reason.value}" if reason is not None else "stopped"
        return "stopped with the others" if reason is StopReason.PAUSE else "stopped: step"
    at = row.state.collective if row.state is not None else None
    if row.life == "running" and at is not None and at.running:
        return f"waits in {collective_text(at)}"
    if row.life == "running" and row.stopping:
        return "stops at its next node"
    return "lost: no word of its end" if row.life == "lost" else row.life


def node_text(row: RankRow) -> str:
    """ "#5/13 TanhBackward0"."""
    stop = row.stop
    if stop is not None:
        name = f" {stop.node.unique_name}" if stop.node is not None else ""
        return f"#{stop.index}/{stop.total}{name}" if stop.total else stop.phase.value
    state = row.state
    if row.life != "running" or state is None or not state.index:
        return ""
    return f"#{state.index}/{state.total} {state.node}".rstrip()


def counts(row: RankRow) -> tuple[int | None, int | None]:
    """(backward, iteration), as told last."""
    if row.stop is not None and row.stop.backward:
        return row.stop.backward, row.stop.iteration
    return (row.state.backward, row.state.iteration) if row.state is not None else (None, None)


def gives_up_text(row: RankRow) -> str:
    if row.gives_up is None:
        return ""
    return ("at least " if row.at_the_earliest else "") + seconds_text(row.gives_up)


def cells(row: RankRow) -> tuple[object, ...]:
    """In the order of ``COLUMNS``."""
    state = row.state
    ended = row.life in ("exited", "lost")
    memory = size(state.rss, spaced=True) if state is not None and state.rss and not ended else ""
    at = collective_text(state.collective) if state is not None else ""
    return (
        "▸" if row.shown else "", row.rank, row.number, row.pid, state_text(row), *counts(row), node_text(row), at,
        memory, seconds_text(row.age), gives_up_text(row),
    )  # fmt: skip


def summary(rows: Sequence[RankRow]) -> str:
    """ "4 ranks: 1 stopped, 3 running"."""
    parts = []
    for life in ("stopped", "running", "exited", "lost"):
        count = sum(row.life == life for row in rows)
        parts += [f"{count} {life}"] if count else []
    return f"{len(rows)} rank{'s' * (len(rows) != 1)}: {', '.join(parts)}" if rows else NONE


NONE = (
    "no process of this program has told a rank (RANK, PADDLE_TRAINER_ID, OMPI_COMM_WORLD_RANK or a process group); "
    "`adbg attach --job PID` of a launcher goes to its ranks"
)


def timeouts_text(states: Iterable[RankState | None]) -> list[str]:
    """A line for every process group: how long its collectives wait."""
    rows: dict[tuple[str, str], GroupTimeout] = {}
    for state in states:
        for row in state.timeouts if state is not None else ():
            rows.setdefault((row.group, row.backend), row)
    lines = []
    for row in rows.values():
        text = f"group {row.group} ({row.backend}): a collective waits {seconds_text(row.own)} for the other ranks"
        if row.seconds != row.own:
            text += f"; {seconds_text(row.seconds)} while adbg has stopped a rank, or may"
        elif not row.adjustable:
            text += f", and {row.framework} has no way to change that"
        lines.append(text)
    return lines


# ------------------------------------------------------------------ the same question to several ranks


def verdict_text(groups: Sequence[Sequence[int]], silent: Sequence[int] = ()) -> str:
    """Of ranks grouped by their answers, the largest group first: "the same on all 4 ranks", "rank 2 differs from the
    other 3, which agree". ``silent`` could not answer."""
    if silent:
        which = f"rank{'s' * (len(silent) > 1)} {ranks_text(silent)}"
        rest = verdict_text(groups).replace("on all", "on the other") if groups else ""
        return f"{rest + '; ' if rest else ''}no answer from {which}"
    everyone = sum(len(group) for group in groups)
    if len(groups) == 1:
        return f"the same on all {everyone} ranks" if everyone > 1 else ""
    odd = outliers(groups)
    if odd:
        which = f"rank {odd[0]} differs" if len(odd) == 1 else f"ranks {ranks_text(odd)} differ"
        return f"{which} from the other {everyone - len(odd)}, which agree"
    return f"{len(groups)} different answers: " + " | ".join(f"rank {ranks_text(group)}" for group in groups)


def outliers(groups: Sequence[Sequence[int]]) -> list[int]:
    """Who is not with the majority; [] where there is none, or all agree."""
    everyone = sum(len(group) for group in groups)
    if len(groups) < 2 or 2 * len(groups[0]) <= everyone:
        return []
    return sorted(rank for group in groups[1:] for rank in group)
