"""The verdict, from facts made by hand: one per class. What real ranks say is in tests/promises/test_hang_*.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adbg.engine.hang.values import HangKind, HangVerdict, Life, RankFacts
from adbg.engine.hang.verdict import judge
from adbg.engine.protocol.messages import Collective, CollectivesBody, ProcessGroup
from adbg.engine.types import SourceLine

ROW = Collective(0, "0", 0, "all_reduce", (4,), "float32", "SUM", state="done", begun=1.0, ended=1.1)


def line(number: int) -> SourceLine:
    return SourceLine("/work/train.py", number, "step")


def rows(*ops: tuple[str, int], group: str = "0", waits: bool = False) -> list[Collective]:
    """Of (operation, line), numbered from 1; the last is not over where the rank ``waits``."""
    found = [
        replace(ROW, id=seq, seq=seq, op=op, group=group, place=line(at), begun=float(seq), ended=seq + 0.5)
        for seq, (op, at) in enumerate(ops, 1)
    ]
    if waits:
        found[-1] = replace(found[-1], state="waiting", ended=None)
    return found


def rank(
    number: int,
    ledger: list[Collective],
    ranks: int = 2,
    *,
    life: Life = Life.RUNNING,
    cpu: float = 0.0,
    moved: bool = False,
    gil: float = 0.0,
    groups: dict[str, list[int]] | None = None,
) -> RankFacts:
    """Looked at at 100 and at 101 s; ``cpu`` seconds were computed meanwhile."""
    known = [ProcessGroup(name, each, "gloo") for name, each in (groups or {"0": list(range(ranks))}).items()]
    before = CollectivesBody(number, 10 + number, 100.0, 0.0, len(ledger), known, ledger, [line(7)], "", 5.0)
    frames = [line(8)] if moved else [line(7)]
    at = replace(before, now=101.0, frames=frames, cpu=5.0 + cpu, gil=gil, stopped=life is Life.STOPPED)
    return RankFacts(number, life, 10 + number, at, before)


def of(*facts: RankFacts) -> HangVerdict:
    return judge(facts)


STEPS = [("all_reduce", 3), ("all_reduce", 3)]


def test_a_rank_that_rests_elsewhere_is_missing() -> None:
    verdict = of(rank(0, rows(*STEPS, ("barrier", 9), waits=True)), rank(1, rows(*STEPS)))
    assert (verdict.kind, verdict.culprits, verdict.waiting) == (HangKind.MISSING, (1,), (0,))
    assert verdict.collective is not None and verdict.collective.seq == 3 and verdict.confidence > 0.9


def test_different_operations_at_one_number_are_a_mismatch() -> None:
    verdict = of(
        rank(0, rows(*STEPS, ("all_reduce", 4), waits=True)), rank(1, rows(*STEPS, ("broadcast", 6), waits=True))
    )
    assert verdict.kind is HangKind.MISMATCH and verdict.divergence is not None
    assert (verdict.divergence.seq, verdict.divergence.differ) == (3, ("op",))
    assert {each: row.place for each, row in verdict.divergence.rows.items()} == {0: line(4), 1: line(6)}


@pytest.mark.parametrize(
    ("change", "name"),
    [({"shape": (5,)}, "shape"), ({"dtype": "float64"}, "dtype"), ({"reduce": "MAX"}, "reduce")],
)
def test_what_must_be_the_same_and_is_not_is_named(change: dict[str, object], name: str) -> None:
    one = rows(*STEPS, waits=True)
    other = [*one[:-1], replace(one[-1], **change)]  # type: ignore[arg-type]
    verdict = of(rank(0, one), rank(1, other))
    assert verdict.kind is HangKind.MISMATCH and verdict.divergence is not None
    assert verdict.divergence.differ == (name,)


def test_the_minority_of_a_mismatch_is_the_culprit() -> None:
    same, other = rows(("all_reduce", 3), waits=True), rows(("barrier", 5), waits=True)
    verdict = of(rank(0, same, 3), rank(1, other, 3), rank(2, same, 3))
    assert (verdict.kind, verdict.culprits) == (HangKind.MISMATCH, (1,))


def test_shapes_of_equal_size_are_no_mismatch() -> None:
    """A gather's parts may differ, and an all_reduce of [2, 2] meets one of [4]."""
    one = rows(*STEPS, waits=True)
    verdict = of(rank(0, one), rank(1, [*one[:-1], replace(one[-1], shape=(2, 2))]))
    assert verdict.kind is HangKind.UNKNOWN


def test_one_call_more_of_a_line_is_counted() -> None:
    loop = [("all_reduce", 3)] * 3
    verdict = of(
        rank(0, rows(*loop, ("all_reduce", 3), waits=True)), rank(1, rows(*loop, ("broadcast", 5), waits=True))
    )
    assert (verdict.kind, verdict.calls, verdict.culprits) == (HangKind.COUNTS, {0: 4, 1: 3}, (1,))


GUARDED = {
    "if rank == 0:": True,
    "if step % 2 and rank == 0:": True,
    "if local_rank != -1:": False,
    "if rank == 1:": False,
    "if step % 2:": False,
}


@pytest.mark.parametrize("guard", GUARDED)
def test_a_call_under_a_condition_that_fits_the_ranks_is_the_odd_one(tmp_path: Path, guard: str) -> None:
    """By their calls alone rank 1 ran one batch more. A condition that lets in others, or all, changes nothing."""
    source = tmp_path / "train.py"
    source.write_text(f"def step():\n    pass\n    all_reduce()\n    {guard}\n        barrier()\n")

    def here(ledger: list[Collective]) -> list[Collective]:
        return [replace(row, place=SourceLine(str(source), row.place.line, "step")) for row in ledger if row.place]

    loop = [("all_reduce", 3)] * 3
    one = rank(0, here(rows(*loop, ("barrier", 5), waits=True)))
    verdict = of(one, rank(1, here(rows(*loop, ("all_reduce", 3), waits=True))))
    if GUARDED[guard]:
        assert (verdict.kind, verdict.culprits, verdict.calls) == (HangKind.MISMATCH, (0,), {})
        assert verdict.condition is not None and verdict.condition.call.line == 5
    else:
        assert (verdict.kind, verdict.calls) == (HangKind.COUNTS, {0: 3, 1: 4}) and verdict.condition is None


def test_a_rank_that_ended_called_fewer() -> None:
    verdict = of(rank(0, rows(*STEPS, waits=True)), RankFacts(1, Life.ENDED, 11))
    assert (verdict.kind, verdict.culprits) == (HangKind.COUNTS, (1,))


def test_a_rank_that_died_comes_before_everything_else() -> None:
    verdict = of(
        rank(0, rows(("all_reduce", 3), waits=True), 3),
        rank(1, rows(("all_reduce", 3), waits=True), 3),
        RankFacts(2, Life.DIED, 12, how="SIGKILL"),
    )
    assert (verdict.kind, verdict.culprits, verdict.waiting) == (HangKind.DIED, (2,), (0, 1))


def test_a_rank_that_this_debugger_holds_is_named() -> None:
    verdict = of(rank(0, rows(*STEPS, waits=True)), rank(1, rows(STEPS[0]), life=Life.STOPPED))
    assert (verdict.kind, verdict.culprits) == (HangKind.STOPPED, (1,))


def test_a_rank_that_computes_in_one_call_is_a_long_kernel() -> None:
    verdict = of(rank(0, rows(*STEPS, waits=True)), rank(1, rows(STEPS[0]), cpu=0.99))
    assert (verdict.kind, verdict.culprits) == (HangKind.LONG_KERNEL, (1,))


def test_a_rank_that_runs_python_on_one_line_is_slow() -> None:
    verdict = of(rank(0, rows(*STEPS, waits=True)), rank(1, rows(STEPS[0]), cpu=0.99, gil=0.005))
    assert (verdict.kind, verdict.culprits) == (HangKind.SLOW, (1,))


def test_a_rank_that_moves_is_slow() -> None:
    verdict = of(rank(0, rows(*STEPS, waits=True)), rank(1, rows(STEPS[0]), cpu=0.5, moved=True))
    assert (verdict.kind, verdict.culprits) == (HangKind.SLOW, (1,))


def test_two_groups_in_other_orders_are_a_deadlock() -> None:
    both = {"1": [0, 1], "2": [0, 1]}
    first = rows(("all_reduce", 3), group="1", waits=True)
    second = rows(("all_reduce", 4), group="2", waits=True)
    verdict = of(rank(0, first, groups=both), rank(1, second, groups=both))
    assert (verdict.kind, verdict.cycle) == (HangKind.DEADLOCK, (0, 1))


def test_the_cycle_of_a_ring_is_told_in_its_order() -> None:
    pairs = {str(each): sorted([each, (each + 1) % 4]) for each in range(4)}
    facts = [rank(each, rows(("all_reduce", 3), group=str(each), waits=True), 4, groups=pairs) for each in range(4)]
    assert judge(facts).cycle == (0, 1, 2, 3)


def test_two_that_receive_from_each_other_are_a_deadlock() -> None:
    def receives(peer: int) -> list[Collective]:
        return [replace(ROW, id=1, op="recv", peer=peer, state="waiting", ended=None, place=line(2))]

    verdict = of(rank(0, receives(1)), rank(1, receives(0)))
    assert (verdict.kind, verdict.cycle) == (HangKind.DEADLOCK, (0, 1))


def test_what_waits_for_one_that_waits_is_followed_to_its_end() -> None:
    """0 waits for 1 in one group, 1 for 2 in another: 2 is missing."""
    groups = {"a": [0, 1], "b": [1, 2]}
    verdict = of(
        rank(0, rows(("all_reduce", 3), group="a", waits=True), groups=groups),
        rank(1, rows(("all_reduce", 4), group="b", waits=True), groups=groups),
        rank(2, [], groups=groups),
    )
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (2,))


def test_a_rank_that_was_not_entered_is_said_to_be_unknown() -> None:
    verdict = of(rank(0, rows(*STEPS, waits=True), 3), rank(1, rows(*STEPS, waits=True), 3))
    assert (verdict.kind, verdict.missing) == (HangKind.UNKNOWN, (2,)) and verdict.confidence < 0.5


def test_a_collective_that_began_between_the_looks_is_no_hang() -> None:
    done, waits = rows(*STEPS), rows(*STEPS, ("all_reduce", 3), waits=True)
    facts = rank(0, waits)
    assert facts.at is not None and facts.before is not None
    first = replace(facts, before=replace(facts.before, rows=done, total=2))
    assert of(first, rank(1, done, moved=True)).kind is HangKind.NOTHING


def test_where_nobody_moves_and_nobody_waits_is_idle() -> None:
    assert of(rank(0, rows(*STEPS)), rank(1, rows(*STEPS))).kind is HangKind.IDLE


def test_numbers_that_are_not_known_compare_the_calls_at_hand() -> None:
    """Found hanging, with no ledger (Paddle): what the frames tell has no number."""
    one = replace(ROW, source="frames", state="waiting", begun=None, ended=None, place=line(3))
    other = replace(one, op="broadcast", place=line(5))
    verdict = of(rank(0, [one]), rank(1, [other]))
    assert verdict.kind is HangKind.MISMATCH and verdict.confidence < 0.8


def test_a_rank_that_died_is_told_where_nobody_waits_for_it() -> None:
    assert of(rank(0, rows(*STEPS), moved=True), RankFacts(1, Life.DIED, 11)).kind is HangKind.DIED


def test_a_row_of_the_ledger_waits_whatever_the_main_thread_does() -> None:
    """The collective may be another thread's: its own row tells."""
    verdict = of(rank(0, rows(*STEPS, waits=True), cpu=0.9, moved=True), rank(1, rows(STEPS[0])))
    assert (verdict.kind, verdict.waiting, verdict.culprits) == (HangKind.MISSING, (0,), (1,))


def test_what_was_issued_before_and_is_waited_for_only_now_is_no_hang() -> None:
    facts = rank(0, rows(*STEPS, waits=True))
    assert facts.before is not None
    issued = [*facts.before.rows[:-1], replace(facts.before.rows[-1], state="issued")]
    verdict = of(replace(facts, before=replace(facts.before, rows=issued)), rank(1, rows(STEPS[0]), moved=True))
    assert verdict.kind is HangKind.NOTHING


# ---- an accusation needs proof


def issuing(facts: RankFacts, number: int | None) -> RankFacts:
    """Its groups say so at both looks."""
    assert facts.at is not None and facts.before is not None
    groups = [replace(group, issued=number) for group in facts.at.groups]
    return replace(facts, at=replace(facts.at, groups=groups), before=replace(facts.before, groups=groups))


def test_a_rank_whose_connection_is_lost_is_not_said_to_have_died() -> None:
    """Let go with its connection, it may train on."""
    verdict = of(rank(0, rows(*STEPS, waits=True)), RankFacts(1, Life.LOST, 11))
    assert (verdict.kind, verdict.culprits) == (HangKind.UNKNOWN, (1,)) and verdict.confidence < 0.5
    verdict = of(rank(0, rows(*STEPS)), RankFacts(1, Life.LOST, 11))
    assert (verdict.kind, verdict.culprits) == (HangKind.UNKNOWN, (1,)) and verdict.confidence < 0.5


UNEVEN = [("all_gather", 3), ("all_reduce", 5), ("all_reduce", 5)]


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("state", ["done", "issued"])
def test_uneven_parts_that_all_went_past_are_no_mismatch(op: str, state: str) -> None:
    """NCCL allows them. Rank 1 is missing, three collectives later."""
    steps = [(op, 3), *UNEVEN[1:]]
    last = rows(*steps, ("all_reduce", 5), waits=True)
    last[0] = replace(last[0], state=state)
    odd = [replace(last[0], shape=(7,)), *last[1:]]
    verdict = of(rank(0, last, 3), rank(1, rows(*steps), 3), rank(2, odd, 3))
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (1,))


def test_uneven_parts_are_a_mismatch_only_where_no_rank_is_missing() -> None:
    one = rows(UNEVEN[0], waits=True)
    odd = [replace(one[0], shape=(7,))]
    assert of(rank(0, one), rank(1, odd)).kind is HangKind.MISMATCH
    verdict = of(rank(0, one, 3), rank(1, odd, 3), rank(2, [], 3))
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (2,))


def test_a_difference_that_is_over_is_less_certain_to_be_the_cause() -> None:
    one = rows(*UNEVEN[1:], ("all_reduce", 5), waits=True)
    other = [replace(one[0], dtype="int32"), *one[1:2]]
    verdict = of(rank(0, one), rank(1, other))
    assert verdict.kind is HangKind.MISMATCH and verdict.confidence < 0.7


def test_who_issued_that_number_already_is_not_waited_for() -> None:
    """Attached late: rank 2 has done its part of a reduce, rank 1 has not come."""
    waits = [replace(ROW, id=1, seq=5, op="reduce", peer=0, state="waiting", ended=None, source="flight recorder")]
    verdict = of(
        issuing(rank(0, waits, 3), 5), issuing(rank(1, [], 3), 4), issuing(rank(2, [], 3), 5)
    )  # fmt: skip
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (1,))


@pytest.mark.parametrize(("numbers", "culprits"), [((5, 4, 5), (1,)), ((5, 4, None), (1,)), ((5, 4, 4), (1, 2))])
def test_a_call_without_a_number_has_that_of_its_group(numbers: tuple[int, ...], culprits: tuple[int, ...]) -> None:
    """The flight recorder is off: frames tell of the call, the group of how many there were."""
    waits = replace(ROW, seq=0, op="reduce", peer=0, state="waiting", begun=None, ended=None, source="frames")
    ranks = [issuing(rank(each, [] if each else [waits], 3), number) for each, number in enumerate(numbers)]
    verdict = judge(ranks)
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, culprits)


def test_which_of_several_is_missing_is_not_guessed() -> None:
    """No numbers at all: a rank whose part of a reduce is over is nowhere to be told from one that never came."""
    waits = replace(ROW, seq=0, op="reduce", peer=0, state="waiting", begun=None, ended=None, source="frames")
    verdict = of(rank(0, [waits], 3), rank(1, [], 3), rank(2, [], 3))
    assert (verdict.kind, verdict.culprits) == (HangKind.UNKNOWN, (1, 2)) and verdict.confidence < 0.5
    assert of(rank(0, [waits]), rank(1, [])).kind is HangKind.MISSING  # there is one alone
    both = replace(waits, op="all_reduce", peer=None)  # no part of it is over while a rank is missing
    assert of(rank(0, [both], 3), rank(1, [], 3), rank(2, [], 3)).culprits == (1, 2)


def test_calls_are_counted_where_all_ledgers_reach() -> None:
    """The rows of a rank in many groups reach less far back."""
    loop = [("all_reduce", 3)] * 5
    more, fewer = rows(*loop, ("all_reduce", 3), waits=True), rows(*loop, ("broadcast", 8), waits=True)
    verdict = of(rank(0, more, 3), rank(1, fewer, 3), rank(2, fewer, 3))
    assert (verdict.kind, verdict.culprits, verdict.calls_from) == (HangKind.COUNTS, (1, 2), 1)
    verdict = of(rank(0, more, 3), rank(1, fewer, 3), rank(2, fewer[3:], 3))
    assert (verdict.kind, verdict.culprits) == (HangKind.COUNTS, (1, 2))
    assert (verdict.calls, verdict.calls_from) == ({0: 3, 1: 2, 2: 2}, 4)


def test_a_rank_that_answered_once_is_not_said_to_rest() -> None:
    """Its GIL was held at the first look: it computed."""
    once = replace(rank(1, rows(*STEPS)), before=None)
    verdict = of(rank(0, rows(*STEPS, ("barrier", 9), waits=True)), once)
    assert (verdict.kind, verdict.culprits) == (HangKind.UNKNOWN, (1,)) and verdict.confidence < 0.5
    recorded = replace(once, recorded=True)
    assert of(rank(0, rows(*STEPS, ("barrier", 9), waits=True)), recorded).kind is HangKind.MISSING


def test_a_rank_that_answered_once_waits_in_what_began_long_ago() -> None:
    def once(number: int, begun: float) -> RankFacts:
        ledger = rows(*STEPS, ("all_reduce", 3), waits=True)
        ledger[-1] = replace(ledger[-1], begun=begun)
        return replace(rank(number, ledger), before=None)

    assert of(once(0, 100.9), rank(1, rows(*STEPS), moved=True)).kind is HangKind.NOTHING
    assert of(once(0, 90.0), rank(1, rows(*STEPS))).waiting == (0,)


def later(facts: RankFacts, seconds: float) -> RankFacts:
    """On a host whose clock is ahead."""
    assert facts.at is not None and facts.before is not None

    def shifted(body: CollectivesBody) -> CollectivesBody:
        moved = [replace(row, begun=None if row.begun is None else row.begun + seconds) for row in body.rows]
        return replace(body, now=body.now + seconds, rows=moved)

    return replace(facts, at=shifted(facts.at), before=shifted(facts.before))


@pytest.mark.parametrize("skew", [-1000.0, 0.0, 1000.0])
def test_the_clocks_of_hosts_may_differ(skew: float) -> None:
    """Rank 0 waits in #3 for rank 1, which did not come; rank 2 has gone on to #4 of another host's time."""
    ahead = rows(*STEPS, ("all_reduce", 3), ("barrier", 4), waits=True)
    verdict = of(rank(0, [*ahead[:2], replace(ahead[2], state="waiting", ended=None)], 3), rank(1, rows(*STEPS), 3),
                 later(rank(2, ahead, 3), skew))  # fmt: skip
    assert verdict.collective is not None and (verdict.collective.seq, verdict.culprits) == (3, (1,))


@pytest.mark.parametrize("skew", [-1000.0, 0.0, 1000.0])
def test_of_two_groups_the_one_that_has_waited_longest_is_judged(skew: float) -> None:
    """By each rank's own clock. Ranks 0 and 1 have waited 98 s in a group, 2 and 3 for 100 s in theirs."""
    pairs = {"a": [0, 1], "b": [2, 3]}
    young = rows(*STEPS, ("all_reduce", 3), group="a", waits=True)
    old = rows(("all_reduce", 4), group="b", waits=True)
    verdict = of(
        rank(0, young, groups=pairs), rank(1, rows(*STEPS, group="a"), groups=pairs),
        later(rank(2, old, groups=pairs), skew), later(rank(3, [], groups=pairs), skew),
    )  # fmt: skip
    assert (verdict.group, verdict.culprits) == ("b", (3,))


def test_numbers_of_a_group_with_sends_are_those_of_its_rows() -> None:
    """gloo counts sends and receives with the collectives: the ends of a pipeline have fewer than its middle."""
    p2p = replace(ROW, op="send", seq=0, peer=1)
    done, waits = rows(*STEPS), rows(*STEPS, ("barrier", 9), waits=True)
    verdict = of(
        issuing(rank(0, [p2p, p2p, *waits], 3), 5),
        issuing(rank(1, [*[p2p] * 4, *waits], 3), 7),
        issuing(rank(2, [p2p, p2p, *done], 3), 4),
    )
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (2,))


def test_a_call_of_cpp_that_its_group_does_not_count_is_waited_for() -> None:
    """Paddle's reducer: frames alone tell of its all_reduce; both ranks have counted 5 of Python's."""
    waits = replace(ROW, seq=0, state="waiting", begun=None, ended=None, source="frames")
    verdict = of(issuing(rank(0, [*rows(*STEPS), waits]), 5), issuing(rank(1, rows(*STEPS)), 5))
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (1,))


@pytest.mark.parametrize(("backend", "certain"), [("gloo", True), ("nccl", False)])
def test_uneven_parts_that_hang_are_certain_where_the_backend_forbids_them(backend: str, certain: bool) -> None:
    one = rows(UNEVEN[0], waits=True)
    facts = [rank(0, one), rank(1, [replace(one[0], shape=(7,))])]
    for each in facts:
        assert each.at is not None
        each.at.groups[:] = [replace(group, backend=backend) for group in each.at.groups]
    verdict = judge(facts)
    assert verdict.kind is HangKind.MISMATCH and (verdict.confidence > 0.9) is certain
