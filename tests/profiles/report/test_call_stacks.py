"""Stacks out of who called whom: a function's time goes to its callers by what each pair took."""

from __future__ import annotations

import pytest

from adbg.profiles.report.call_stacks import call_tree
from adbg.profiles.report.model import Call, Caller


def stacks(calls: list[Call]) -> dict[tuple[int, ...], float]:
    return {sample.stack: pytest.approx(sample.weight) for sample in call_tree(calls)}


def test_what_is_below_a_shared_function_is_shared_as_it_is() -> None:
    """0 calls 1 and 2; both call 3, for 10 and for 30 s, and 3 calls 4."""
    calls = [
        Call(0, 1, 1, 0.0, 50.0),
        Call(1, 1, 1, 1.0, 11.0, (Caller(0, 1, 1, 1.0, 11.0),)),
        Call(2, 1, 1, 9.0, 39.0, (Caller(0, 1, 1, 9.0, 39.0),)),
        Call(3, 4, 4, 8.0, 40.0, (Caller(1, 1, 1, 2.0, 10.0), Caller(2, 3, 3, 6.0, 30.0))),
        Call(4, 4, 4, 32.0, 32.0, (Caller(3, 4, 4, 32.0, 32.0),)),
    ]
    assert stacks(calls) == {
        (0, 1): 1.0, (0, 2): 9.0, (0, 1, 3): 2.0, (0, 2, 3): 6.0, (0, 1, 3, 4): 8.0, (0, 2, 3, 4): 24.0,
    }  # fmt: skip


def test_one_that_calls_itself() -> None:
    """0 calls 1, which calls itself and 2."""
    calls = [
        Call(0, 1, 1, 1.0, 10.0),
        Call(1, 5, 1, 6.0, 9.0, (Caller(0, 1, 1, 2.0, 9.0), Caller(1, 4, 0, 4.0, 7.0))),
        Call(2, 5, 5, 3.0, 3.0, (Caller(1, 5, 5, 3.0, 3.0),)),
    ]
    assert stacks(calls) == {(0,): 1.0, (0, 1): 6.0, (0, 1, 2): 3.0}


def test_two_that_call_each_other_lose_nothing() -> None:
    calls = [
        Call(0, 1, 1, 1.0, 10.0),
        Call(1, 3, 1, 5.0, 9.0, (Caller(0, 1, 1, 2.0, 9.0), Caller(2, 2, 0, 3.0, 6.0))),
        Call(2, 2, 1, 4.0, 7.0, (Caller(1, 2, 1, 4.0, 7.0),)),
    ]
    found = call_tree(calls)
    assert sum(sample.weight for sample in found) == pytest.approx(10.0)
    assert {sample.stack[0] for sample in found} <= {0, 1, 2}


def test_one_that_was_entered_before_the_profiler() -> None:
    """It has no row of its caller's: it is a beginning."""
    assert stacks([Call(7, 1, 1, 2.0, 2.0)]) == {(7,): 2.0}
    assert call_tree([]) == ()
