"""The verdict, from facts made by hand: one per class. What real ranks say is in tests/promises/test_hang_*.py."""

from __future__ import annotations

from dataclasses import replace

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
