"""Which differences of two rows count, across the names that frameworks give to one operation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adbg.engine.hang.divergence import differences, first_divergence
from adbg.engine.protocol.messages import Collective

ROW = Collective(1, "0", 1, "all_reduce", (4,), "float32", "SUM", state="done")


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (replace(ROW, op="broadcast"), ("op",)),
        (replace(ROW, shape=(2, 2)), ()),
        (replace(ROW, shape=(5,), dtype="int64"), ("shape", "dtype")),
        (replace(ROW, op="all_reduce_coalesced"), ()),
        (replace(ROW, op="reduce_scatter_single", source="flight recorder"), ()),  # gloo makes an all_reduce of it
        (replace(ROW, shape=None, dtype=""), ()),
    ],
)
def test_differences(other: Collective, differ: tuple[str, ...]) -> None:
    assert differences(ROW, other) == differ


def test_roots_are_compared_where_there_is_one() -> None:
    one = replace(ROW, op="broadcast", reduce="", peer=0)
    assert differences(one, replace(one, peer=1)) == ("peer",)
    assert differences(replace(one, op="send"), replace(one, op="send", peer=1)) == ()


def test_the_first_place_is_found_and_numbers_of_other_groups_are_left_alone() -> None:
    mine = [replace(ROW, seq=seq) for seq in (1, 2, 3)]
    theirs = [mine[0], replace(mine[1], op="barrier"), replace(mine[2], op="barrier")]
    elsewhere = replace(ROW, group="1", op="gather")
    found = first_divergence({0: mine, 1: [elsewhere, *theirs]}, "0")
    assert found is not None and (found.seq, found.differ) == (2, ("op",))
    assert first_divergence({0: mine, 1: mine[1:]}, "0") is None
