"""Why a job hangs: what its ranks say, compared; the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adbg.engine.hang.divergence import differences, first_divergence, uneven
from adbg.engine.hang.standing import BUSY, groups_of, members, standing
from adbg.engine.hang.values import Divergence, HangKind, HangVerdict, Life, RankFacts, Standing
from adbg.engine.protocol.messages import Collective, ProcessGroup

_ALONE = ("send", "recv")

KILLED = "the record of a rank that was killed ends like that of one which never came: both are said to be missing"

Ledgers = Mapping[int, Sequence[Collective]]


def judge(ranks: Sequence[RankFacts]) -> HangVerdict:
    """Why these ranks hang. Each was looked at twice, or its record was read."""
    ranks = sorted(ranks, key=lambda facts: facts.rank)
    groups = groups_of(ranks)
    standings = {facts.rank: standing(facts) for facts in ranks}
    notes = tuple(dict.fromkeys(note for facts in ranks if facts.at is not None for note in facts.at.notes))
    waiting = {rank: each.waits for rank, each in standings.items() if each.waits is not None}
    if not waiting:
        verdict = _nobody_waits(standings)
    else:
        verdict = _somebody_waits(waiting, standings, groups, ranks)
        known = {facts.rank: standing(facts, verdict.group) for facts in ranks}
        standings = {
            rank: replace(each, issued=known[rank].issued, last=known[rank].last) for rank, each in standings.items()
        }
    group = groups.get(verdict.group)
    if group is not None:
        verdict = replace(verdict, timeout=group.timeout, description=group.description)
    if verdict.kind is not HangKind.MISSING:
        notes = tuple(note for note in notes if note != KILLED)
    return replace(verdict, standings=tuple(standings.values()), notes=notes)


def _nobody_waits(standings: Mapping[int, Standing]) -> HangVerdict:
    died = tuple(each.rank for each in standings.values() if each.life is Life.DIED)
    if died:
        return HangVerdict(HangKind.DIED, 0.95, culprits=died)
    alive = [each for each in standings.values() if each.life is Life.RUNNING]
    still = [each for each in alive if each.moved is False]
    computing = tuple(each.rank for each in still if (each.cpu or 0.0) > BUSY and each.native)
    if computing:
        return HangVerdict(HangKind.LONG_KERNEL, 0.7, culprits=computing)
    stopped = tuple(each.rank for each in standings.values() if each.life is Life.STOPPED)
    if stopped and not alive:
        return HangVerdict(HangKind.STOPPED, 0.95, culprits=stopped)
    silent = tuple(each.rank for each in standings.values() if each.life is Life.SILENT)
    if silent:
        return HangVerdict(HangKind.UNKNOWN, 0.3, culprits=silent)
    resting = tuple(each.rank for each in still if (each.cpu or 0.0) <= BUSY)
    if alive and len(resting) == len(alive):
        return HangVerdict(HangKind.IDLE, 0.6, culprits=resting)
    return HangVerdict(HangKind.NOTHING, 0.95)


def _somebody_waits(
    waiting: Mapping[int, Collective],
    standings: Mapping[int, Standing],
    groups: dict[str, ProcessGroup],
    ranks: Sequence[RankFacts],
) -> HangVerdict:
    ledgers = {facts.rank: facts.at.rows for facts in ranks if facts.at is not None}
    first = _first_waiting(waiting)
    group = waiting[first].group
    everyone = members(group, groups, ranks)
    edges = wait_for(waiting, groups, ranks, ledgers)
    absent = edges.get(first, set())
    verdict = HangVerdict(
        HangKind.UNKNOWN,
        0.95 if waiting[first].source != "frames" else 0.75,
        group=group,
        group_ranks=tuple(everyone),
        collective=waiting[first],
        waiting=tuple(sorted(waiting)),
        missing=tuple(rank for rank in everyone if rank not in standings),
    )
    found = (
        _gone(verdict, absent, standings)
        or _differs(verdict, waiting, ledgers)
        or _cycle(verdict, waiting, edges)
        or _elsewhere(verdict, _ends_of(first, edges, waiting), standings)
    )
    return found if found is not None else replace(verdict, confidence=0.4)


def _first_waiting(waiting: Mapping[int, Collective]) -> int:
    """The rank whose collective has waited longest: in one group the lowest number, else the earliest begin."""
    return min(waiting, key=lambda rank: (waiting[rank].begun or 0.0, waiting[rank].seq, rank))


def wait_for(
    waiting: Mapping[int, Collective], groups: dict[str, ProcessGroup], ranks: Sequence[RankFacts], ledgers: Ledgers
) -> dict[int, set[int]]:
    """By rank that waits, the ranks that it waits for: members of its group that are not in that collective, and have
    not been; of a send or receive, the other end."""
    edges: dict[int, set[int]] = {}
    for rank, row in waiting.items():
        if row.op in _ALONE:
            there = waiting.get(row.peer) if row.peer is not None else None
            meets = there is not None and there.op != row.op and there.op in _ALONE and there.peer == rank
            edges[rank] = set() if meets or row.peer is None else {row.peer}
            continue
        edges[rank] = {
            other
            for other in members(row.group, groups, ranks)
            if other != rank and not _was_in(row, waiting.get(other), ledgers.get(other, ()))
        }
    return edges


def _was_in(row: Collective, theirs: Collective | None, ledger: Sequence[Collective]) -> bool:
    if theirs is not None and theirs.group == row.group:
        if row.seq and theirs.seq:
            return theirs.seq >= row.seq and not (theirs.seq == row.seq and differences(row, theirs))
        return not differences(row, theirs)
    return bool(row.seq) and any(each.group == row.group and each.seq >= row.seq for each in ledger)


def _gone(verdict: HangVerdict, absent: set[int], standings: Mapping[int, Standing]) -> HangVerdict | None:
    """A rank that is waited for is not there any more, or is held by this debugger."""
    for life, kind in ((Life.DIED, HangKind.DIED), (Life.ENDED, HangKind.COUNTS), (Life.STOPPED, HangKind.STOPPED)):
        gone = tuple(sorted(rank for rank in absent if rank in standings and standings[rank].life is life))
        if gone:
            return replace(verdict, kind=kind, culprits=gone)
    return None


def _differs(verdict: HangVerdict, waiting: Mapping[int, Collective], ledgers: Ledgers) -> HangVerdict | None:
    """The ranks are in different collectives of one group, at one number."""
    divergence = first_divergence(ledgers, verdict.group)
    row = verdict.collective
    if divergence is not None and row is not None and (not row.seq or divergence.seq <= row.seq):
        called, calls = uneven(divergence, ledgers)
        if calls:
            least = min(calls.values())
            fewer = tuple(rank for rank, number in calls.items() if number == least)
            return replace(
                verdict, kind=HangKind.COUNTS, culprits=fewer, calls=calls, divergence=divergence, collective=called
            )
        return replace(verdict, kind=HangKind.MISMATCH, culprits=_odd(divergence), divergence=divergence)
    here = {rank: each for rank, each in waiting.items() if each.group == verdict.group and each.op not in _ALONE}
    if row is None or row.op in _ALONE:
        return None
    differ = {name for each in here.values() if not (each.seq and row.seq) for name in differences(row, each)}
    if not differ:
        return None
    unnumbered = Divergence(verdict.group, 0, tuple(sorted(differ)), dict(here))
    return replace(verdict, kind=HangKind.MISMATCH, culprits=_odd(unnumbered), divergence=unnumbered, confidence=0.7)


def _odd(divergence: Divergence) -> tuple[int, ...]:
    """The ranks that are in the minority; all of them where there is none."""
    parties: list[list[int]] = []
    for rank, row in divergence.rows.items():
        party = next((each for each in parties if not differences(divergence.rows[each[0]], row)), None)
        if party is None:
            parties.append([rank])
        else:
            party.append(rank)
    most = max(len(party) for party in parties)
    small = [party for party in parties if len(party) < most]
    return tuple(sorted(rank for party in (small or parties) for rank in party))


def _cycle(
    verdict: HangVerdict, waiting: Mapping[int, Collective], edges: Mapping[int, set[int]]
) -> HangVerdict | None:
    """Ranks that wait for each other round about."""
    for start in sorted(edges):
        path = _back_to(start, edges)
        if path and len({(waiting[rank].group, waiting[rank].op, waiting[rank].seq) for rank in path}) > 1:
            return replace(verdict, kind=HangKind.DEADLOCK, culprits=tuple(path), cycle=tuple(path))
        if path and all(waiting[rank].op in _ALONE for rank in path):
            return replace(verdict, kind=HangKind.DEADLOCK, culprits=tuple(path), cycle=tuple(path))
    return None


def _back_to(start: int, edges: Mapping[int, set[int]]) -> list[int]:
    """The shortest way along the edges from ``start`` to itself; [] for none."""
    ways = [[start]]
    seen: set[int] = set()
    while ways:
        way = ways.pop(0)
        for after in sorted(edges.get(way[-1], ())):
            if after == start:
                return way
            if after not in seen:
                seen.add(after)
                ways.append([*way, after])
    return []


def _ends_of(first: int, edges: Mapping[int, set[int]], waiting: Mapping[int, Collective]) -> set[int]:
    """Whom ``first`` waits for in the end: a rank that waits itself waits for others."""
    ends, seen, left = set(), {first}, [first]
    while left:
        for after in edges.get(left.pop(), ()):
            if after in seen:
                continue
            seen.add(after)
            if after in waiting:
                left.append(after)
            else:
                ends.add(after)
    return ends


def _elsewhere(verdict: HangVerdict, absent: set[int], standings: Mapping[int, Standing]) -> HangVerdict | None:
    """The ranks that are waited for are somewhere else: computing, on their way, or at rest."""
    known = [standings[rank] for rank in sorted(absent) if rank in standings]
    gone = _gone(verdict, absent, standings)
    if gone is not None:
        return gone
    running = [each for each in known if each.life is Life.RUNNING]
    if not running:
        silent = tuple(each.rank for each in known if each.life is Life.SILENT)
        culprits = silent or tuple(sorted(absent))
        return replace(verdict, culprits=culprits, confidence=0.4) if culprits else None
    resting = tuple(each.rank for each in running if not each.moved and (each.cpu or 0.0) <= BUSY)
    if resting:
        return replace(verdict, kind=HangKind.MISSING, culprits=resting)
    computing = tuple(each.rank for each in running if each.moved is False and each.native and (each.cpu or 0.0) > BUSY)
    if computing:
        return replace(verdict, kind=HangKind.LONG_KERNEL, culprits=computing, confidence=min(verdict.confidence, 0.8))
    return replace(
        verdict, kind=HangKind.SLOW, culprits=tuple(each.rank for each in running),
        confidence=min(verdict.confidence, 0.8),
    )  # fmt: skip
