"""Where each rank stands: from two looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adbg.engine.hang.values import Life, RankFacts, Standing
from adbg.engine.protocol.messages import Collective, CollectivesBody, ProcessGroup

ALONE = ("send", "recv")  # of two ranks
OPEN = frozenset(("called", "waiting"))
HELD = 0.004  # seconds to get the GIL, from which on Python code holds it
BUSY = 0.3  # share of the time above which a main thread computes
LONG = 1.0  # seconds in a collective after which a rank that was looked at once waits in it


def standing(facts: RankFacts, group: str = "") -> Standing:
    at, before = facts.at, facts.before
    if at is None:
        return Standing(facts.rank, facts.life, facts.pid, facts.how)
    waits = waits_in(at, before, facts.recorded)
    cpu = None if before is None else share(before, at)
    life = Life.STOPPED if at.stopped and facts.life is Life.RUNNING else facts.life
    return Standing(
        facts.rank,
        life,
        facts.pid,
        facts.how,
        waits,
        waits.place if waits is not None and waits.place is not None else next(iter(at.frames), None),
        at.call,
        None if before is None else moved(before, at),
        cpu,
        at.gil < HELD,
        newest(at, group) if waits is None else None,
        issued(at, group) if group else None,
        at.now - waits.begun if waits is not None and waits.begun else None,
    )


def waits_in(at: CollectivesBody, before: CollectivesBody | None, recorded: bool) -> Collective | None:
    """The oldest collective that the process is in, and was in at the look before.

    One that only the framework's recorder knows may be asynchronous: it counts where the main thread rests.
    """
    for row in at.rows:
        if row.state not in OPEN:
            continue
        if before is None:
            if recorded or (row.begun is not None and at.now - row.begun >= LONG):
                return row
        elif row.source == "ledger":
            if any(each.id == row.id and each.state == row.state for each in before.rows):
                return row
        elif (row.begun is None or row.begun < before.now) and _rests(before, at):
            return row
    return None


def _rests(before: CollectivesBody, at: CollectivesBody) -> bool:
    return not moved(before, at) and share(before, at) < BUSY


def share(before: CollectivesBody, at: CollectivesBody) -> float:
    """Of the time between two looks that the main thread computed."""
    return max(0.0, at.cpu - before.cpu) / (at.now - before.now) if at.now > before.now else 0.0


def moved(before: CollectivesBody, at: CollectivesBody) -> bool:
    return (
        before.total != at.total
        or before.backwards != at.backwards
        or before.frames != at.frames
        or {group.name: group.issued for group in before.groups} != {group.name: group.issued for group in at.groups}
    )


def newest(at: CollectivesBody, group: str) -> Collective | None:
    """The last collective of ``group``, "" for any, that the process called."""
    rows = [row for row in at.rows if row.group == group] or at.rows
    return rows[-1] if rows else None


def issued(at: CollectivesBody, group: str) -> int | None:
    """Number of the last collective of a group that the process issued. Where it sends or receives in that group, its
    rows alone tell: gloo counts these too, and each rank has as many of its own."""
    mine = [row for row in at.rows if row.group == group]
    numbers = [row.seq for row in mine if row.seq]
    if all(row.op not in ALONE for row in mine):
        numbers += [found.issued for found in at.groups if found.name == group and found.issued is not None]
    return max(numbers, default=None)


def groups_of(ranks: Iterable[RankFacts]) -> dict[str, ProcessGroup]:
    """Every group that some rank is in, by name, with all the members that any of them knows."""
    found: dict[str, ProcessGroup] = {}
    for facts in ranks:
        for group in facts.at.groups if facts.at is not None else ():
            known = found.get(group.name)
            if known is None or len(group.ranks) > len(known.ranks):
                found[group.name] = group
    return found


def members(group: str, groups: dict[str, ProcessGroup], ranks: Sequence[RankFacts]) -> list[int]:
    known = groups.get(group)
    return list(known.ranks) if known is not None and known.ranks else [facts.rank for facts in ranks]
