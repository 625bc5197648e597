"""Small sentences that people read as answers."""

from __future__ import annotations

import math

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.types import TensorStats, ValueState, remark_of
from adbg.tui.cli.attach import process_number
from adbg.tui.commands.table import choice_of
from adbg.tui.text.formatting import stats_text


def stats(nan: int, numel: int = 6, sampled: int | None = None) -> TensorStats:
    nothing = math.nan
    return TensorStats(numel, sampled, nothing, nothing, nothing, nothing, 0.0, 0, 0, 0, 0, 0, nan)


def test_of_a_tensor_without_a_finite_element_no_norm_is_told() -> None:
    first, counts = stats_text(stats(6)).splitlines()
    assert first == "no finite element: no norm, range or mean"
    assert counts.endswith("nan 6")
    assert stats_text(stats(3, 600, 3)).startswith("no finite element: no norm, range or mean   (sampled: 3 of 600")
    assert stats_text(stats(5)).startswith("of the finite: norm")


def test_a_wrong_word_is_told_with_the_right_ones() -> None:
    for word, message in (("maybe", "record: unknown word 'maybe'"), ("", "record: a word is missing")):
        with pytest.raises(CommandError) as found:
            choice_of(word, ("on", "off"), "record")
        assert found.value.message == message and found.value.hint == "one of: on, off"
    with pytest.raises(CommandError, match="'o' is ambiguous"):
        choice_of("o", ("on", "off"), "record")


def test_what_was_freed_says_by_which_backward() -> None:
    assert remark_of(ValueState.FREED) == "freed: this graph was run backward already"
    assert remark_of(ValueState.FREED_NOW) == "freed as the node ran: this backward does not retain the graph"


def test_a_process_number() -> None:
    assert process_number("12") == 12
    for word in ("x", "0", "-3"):
        with pytest.raises(Exception, match="must be the number of a process"):
            process_number(word)
