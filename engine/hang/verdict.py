"""Why a job hangs: what its ranks say, compared; the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adbg.engine.hang.branch import branch_of
from adbg.engine.hang.conditioned import Condition, condition_of
from adbg.engine.hang.divergence import differences, first_divergence, is_over, may_be_uneven, uneven
from adbg.engine.hang.left_loop import left_loop
from adbg.engine.hang.standing import ALONE, BUSY, groups_of, issued, members, standing
from adbg.engine.hang.values import Divergence, HangKind, HangVerdict, Life, RankFacts, Standing
from adbg.engine.protocol.messages import Collective, CollectivesBody, ProcessGroup

_ROOTED = ("broadcast", "reduce", "gather", "scatter")  # a rank's part may be over before all have come
_UNSURE = 0.4  # confidence
_BY_SOURCE = 0.85  # of what the source says alone: of the other ranks nothing is known

KILLED = "the record of a rank that was killed ends like that of one which never came: both are said to be missing"

UNKNOWN_RANK = "a process of the run whose rank is not known is left out"

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
        killed = all(standings[rank].life is Life.DIED for rank in waiting)
        verdict = _under_condition(_somebody_waits(waiting, standings, groups, ranks), killed)
        known = {facts.rank: standing(facts, verdict.group) for facts in ranks}
        standings = {
            rank: replace(each, issued=known[rank].issued, last=known[rank].last) for rank, each in standings.items()
        }
    group = groups.get(verdict.group)
    if group is not None:
        verdict = replace(verdict, timeout=group.timeout, description=group.description)
    verdict = _in_branch(_behind_loop(verdict, standings), standings)
    if verdict.kind is not HangKind.MISSING or verdict.condition is not None:
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
    lost = tuple(each.rank for each in standings.values() if each.life is Life.LOST)
    stopped = tuple(each.rank for each in standings.values() if each.life is Life.STOPPED)
    if stopped and not alive and not lost:
        return HangVerdict(HangKind.STOPPED, 0.95, culprits=stopped)
    silent = tuple(each.rank for each in standings.values() if each.life is Life.SILENT)
    if silent or lost:
        return HangVerdict(HangKind.UNKNOWN, 0.3, culprits=tuple(sorted((*silent, *lost))))
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
    bodies = {facts.rank: facts.at for facts in ranks if facts.at is not None}
    ledgers = {rank: body.rows for rank, body in bodies.items()}
    first = _first_waiting(waiting, standings)
    group = waiting[first].group
    everyone = members(group, groups, ranks)
    edges = wait_for(waiting, groups, ranks, bodies)
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
        or _differs(verdict, waiting, ledgers, groups.get(group))
        or _cycle(verdict, waiting, edges)
    )
    if found is not None:
        return found
    proven = _proven(waiting[first], _number(waiting[first], bodies[first]), absent, waiting, bodies)
    if absent and not proven:
        return replace(verdict, culprits=tuple(sorted(absent)), confidence=_UNSURE)
    ends = _ends_of(first, {**edges, first: proven}, waiting)
    return _elsewhere(verdict, ends, standings, ranks) or replace(verdict, confidence=_UNSURE)


def _first_waiting(waiting: Mapping[int, Collective], standings: Mapping[int, Standing]) -> int:
    """The rank to begin with: of each group the one in the lowest number, of these the one that has waited longest, by
    its own clock. Of sends, receives and what has no number, each stands for itself."""

    def waited(rank: int) -> float:
        seconds = standings[rank].seconds
        return float("inf") if seconds is None else seconds

    firsts: dict[tuple[str, int], int] = {}
    for rank in sorted(waiting, key=lambda rank: (waiting[rank].seq, -waited(rank), rank)):
        row = waiting[rank]
        firsts.setdefault((row.group, -1 if row.seq else rank), rank)
    return min(firsts.values(), key=lambda rank: (-waited(rank), rank))


def wait_for(
    waiting: Mapping[int, Collective],
    groups: dict[str, ProcessGroup],
    ranks: Sequence[RankFacts],
    bodies: Mapping[int, CollectivesBody],
) -> dict[int, set[int]]:
    """By rank that waits, the ranks that it waits for: members of its group that are not in that collective, and have
    not been; of a send or receive, the other end."""
    edges: dict[int, set[int]] = {}
    for rank, row in waiting.items():
        if row.op in ALONE:
            there = waiting.get(row.peer) if row.peer is not None else None
            meets = there is not None and there.op != row.op and there.op in ALONE and there.peer == rank
            edges[rank] = set() if meets or row.peer is None else {row.peer}
            continue
        number = _number(row, bodies[rank])
        edges[rank] = {
            other
            for other in members(row.group, groups, ranks)
            if other != rank and not _was_in(row, number, waiting.get(other), bodies.get(other))
        }
    return edges


def _number(row: Collective, body: CollectivesBody) -> int:
    """Of a collective that a rank waits in; of one that only its frames tell of, how many its group counts, with this
    one or without (one of C++'s, on Paddle); 0: not known."""
    return row.seq or issued(body, row.group) or 0


def _was_in(row: Collective, number: int, theirs: Collective | None, body: CollectivesBody | None) -> bool:
    if theirs is not None and theirs.group == row.group:
        if row.seq and theirs.seq:
            return theirs.seq >= row.seq and not (theirs.seq == row.seq and differences(row, theirs))
        return not differences(row, theirs)
    theirs_now = 0 if body is None else issued(body, row.group) or 0
    return bool(number) and theirs_now >= (number if row.seq else number + 1)


def _gone(verdict: HangVerdict, absent: set[int], standings: Mapping[int, Standing]) -> HangVerdict | None:
    """A rank that is waited for is not there any more, or is held by this debugger."""
    for life, kind in ((Life.DIED, HangKind.DIED), (Life.ENDED, HangKind.COUNTS), (Life.STOPPED, HangKind.STOPPED)):
        gone = tuple(sorted(rank for rank in absent if rank in standings and standings[rank].life is life))
        if gone:
            return replace(verdict, kind=kind, culprits=gone)
    return None


def _differs(
    verdict: HangVerdict, waiting: Mapping[int, Collective], ledgers: Ledgers, group: ProcessGroup | None
) -> HangVerdict | None:
    """The ranks are in different collectives of one group, at one number."""
    divergence = first_divergence(ledgers, verdict.group, verdict.group_ranks)
    row = verdict.collective
    if divergence is not None and row is not None and (not row.seq or divergence.seq <= row.seq):
        over = is_over(divergence.rows.values())
        legal = may_be_uneven(divergence) and (group is None or group.backend != "gloo")
        if over or legal:
            verdict = replace(verdict, confidence=min(verdict.confidence, 0.6))
        called, calls, start = uneven(divergence, ledgers)
        if calls:
            least = min(calls.values())
            fewer = tuple(rank for rank, number in calls.items() if number == least)
            return replace(
                verdict, kind=HangKind.COUNTS, culprits=fewer, calls=calls, calls_from=start, divergence=divergence,
                collective=called,
            )  # fmt: skip
        return replace(verdict, kind=HangKind.MISMATCH, culprits=_odd(divergence), divergence=divergence)
    here = {rank: each for rank, each in waiting.items() if each.group == verdict.group and each.op not in ALONE}
    if row is None or row.op in ALONE:
        return None
    differ = {name for each in here.values() if not (each.seq and row.seq) for name in differences(row, each)}
    if not differ:
        return None
    unnumbered = Divergence(verdict.group, 0, tuple(sorted(differ)), dict(here))
    return replace(verdict, kind=HangKind.MISMATCH, culprits=_odd(unnumbered), divergence=unnumbered, confidence=0.7)


def _under_condition(verdict: HangVerdict, killed: bool = False) -> HangVerdict:
    """Where the source says that only some ranks come to a call: those that are in it differ, however often the others
    called theirs; of a call that others did not come to, why. ``killed``: those that are in it were killed in it, so
    that the source decides where nothing is known of the others."""
    row, divergence = verdict.collective, verdict.divergence
    if verdict.kind is HangKind.UNKNOWN and row is not None and row.place is not None:
        others = tuple(rank for rank in verdict.group_ranks if rank not in verdict.waiting)
        alone = condition_of(row.place)
        if alone is not None and others and killed and _fits(alone, verdict.waiting, others):
            return replace(verdict, kind=HangKind.MISSING, culprits=others, condition=alone, confidence=_BY_SOURCE)
    if verdict.kind not in (HangKind.MISMATCH, HangKind.COUNTS, HangKind.MISSING):
        return verdict
    if divergence is None:
        condition = condition_of(row.place) if row is not None and row.place is not None else None
        lets = condition is not None and _fits(condition, verdict.waiting, verdict.culprits)
        return replace(verdict, condition=condition if lets else None)
    found = {rank: condition_of(each.place) for rank, each in divergence.rows.items() if each.place is not None}
    some = [rank for rank, condition in found.items() if condition is not None]
    if not some or len({divergence.rows[rank].place for rank in some}) != 1 or len(some) == len(divergence.rows):
        return verdict
    condition = found[some[0]]
    if condition is None or not _fits(condition, some, [rank for rank in divergence.rows if rank not in some]):
        return verdict
    return replace(
        verdict, kind=HangKind.MISMATCH, culprits=tuple(sorted(some)), calls={}, condition=condition,
        collective=divergence.rows[some[0]],
    )  # fmt: skip


def _behind_loop(verdict: HangVerdict, standings: Mapping[int, Standing]) -> HangVerdict:
    """Where those that called it less often have left the loop that the others call it in; where those that were killed
    in it have left the one that the others are in."""
    row = verdict.collective
    if verdict.kind is HangKind.MISSING and verdict.condition is None and _are_killed(verdict, standings):
        rests = {standings[rank].place for rank in verdict.culprits if rank in standings}
        rest = rests.pop() if len(rests) == 1 else None
        here = row.place if row is not None else None
        return replace(verdict, left=left_loop(rest, here) if rest is not None and here is not None else None)
    if verdict.kind is not HangKind.COUNTS or verdict.condition is not None or row is None or row.place is None:
        return verdict
    places = {standings[rank].place for rank in verdict.culprits if rank in standings}
    behind = places.pop() if len(places) == 1 else None
    return replace(verdict, left=left_loop(row.place, behind) if behind is not None else None)


def _in_branch(verdict: HangVerdict, standings: Mapping[int, Standing]) -> HangVerdict:
    """Where the source has one of the calls alone under a condition on its data: the ranks that are elsewhere passed it
    by."""
    row, divergence = verdict.collective, verdict.divergence
    left = verdict.left
    if verdict.condition is not None or (left is not None and left.leaves is not None):
        return verdict
    if verdict.kind in (HangKind.COUNTS, HangKind.MISSING):
        rows = [row]
    elif verdict.kind is HangKind.MISMATCH and divergence is not None:
        rows = list(divergence.rows.values())
        if len({each.place for each in divergence.rows.values()}) == 1:  # all came there
            return verdict
    elif verdict.kind is HangKind.DEADLOCK:
        rows = [standings[rank].waits for rank in verdict.cycle if rank in standings]
    else:
        return verdict
    places = {each.place for each in rows if each is not None and each.place is not None}
    found = [branch for branch in map(branch_of, places) if branch is not None]
    if len(found) != 1 or (left is not None and found[0].counts):
        return verdict  # by a counter all ranks pass it by alike: the loop is shorter on one
    rests = [standings[rank].place for rank in verdict.culprits if rank in standings]
    passed = [found[0].is_behind(each) for each in rests]
    if _are_killed(verdict, standings):  # what met theirs was another one's: that of the next round
        passed = [one or found[0].is_round(each) for one, each in zip(passed, rests)]
    if verdict.kind is HangKind.MISSING and not all(passed):
        return verdict
    return replace(verdict, branch=found[0])


def _are_killed(verdict: HangVerdict, standings: Mapping[int, Standing]) -> bool:
    """Those that are in it are gone."""
    return all(standings[rank].life is Life.DIED for rank in verdict.waiting if rank in standings)


def _fits(condition: Condition, there: Iterable[int], elsewhere: Iterable[int]) -> bool:
    """Whether it lets just those come that are there."""
    return all(map(condition.lets, there)) and not any(map(condition.lets, elsewhere))


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
        if path and all(waiting[rank].op in ALONE for rank in path):
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


def _proven(
    row: Collective, number: int, absent: set[int], waiting: Iterable[int], bodies: Mapping[int, CollectivesBody]
) -> set[int]:
    """Of the ranks that are not in it, those that have not been: they are in another, or their group's number tells.
    Where there is one alone, it is that; of an operation whose parts are over together, each is where none is told."""
    if len(absent) < 2 or (row.seq and row.op not in _ROOTED):
        return absent
    numbers = {rank: issued(bodies[rank], row.group) for rank in absent if rank in bodies}
    told = {rank for rank, theirs in numbers.items() if theirs is not None and theirs < number}
    told |= absent & set(waiting)
    return told or (set() if row.op in _ROOTED else absent)


def _elsewhere(
    verdict: HangVerdict, absent: set[int], standings: Mapping[int, Standing], ranks: Sequence[RankFacts]
) -> HangVerdict | None:
    """The ranks that are waited for are somewhere else: computing, on their way, or at rest."""
    recorded = {facts.rank for facts in ranks if facts.recorded}
    known = [standings[rank] for rank in sorted(absent) if rank in standings]
    gone = _gone(verdict, absent, standings)
    if gone is not None:
        return gone
    running = [each for each in known if each.life is Life.RUNNING]
    if not running:
        silent = tuple(each.rank for each in known if each.life is Life.SILENT)
        culprits = silent or tuple(sorted(absent))
        return replace(verdict, culprits=culprits, confidence=_UNSURE) if culprits else None
    seen = [each for each in running if each.moved is not None or each.rank in recorded]
    if not seen:  # each answered once: what it does is not known
        return replace(verdict, culprits=tuple(each.rank for each in running), confidence=_UNSURE)
    resting = tuple(each.rank for each in seen if not each.moved and (each.cpu or 0.0) <= BUSY)
    if resting:
        return replace(verdict, kind=HangKind.MISSING, culprits=resting)
    computing = tuple(each.rank for each in seen if each.moved is False and each.native and (each.cpu or 0.0) > BUSY)
    if computing:
        return replace(verdict, kind=HangKind.LONG_KERNEL, culprits=computing, confidence=min(verdict.confidence, 0.8))
    return replace(
        verdict, kind=HangKind.SLOW, culprits=tuple(each.rank for each in seen),
        confidence=min(verdict.confidence, 0.8),
    )  # fmt: skip
