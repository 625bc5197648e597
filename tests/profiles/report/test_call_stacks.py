"""Stacks out of who called whom: a function's time goes to its callers by what each pair took."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import pytest

from adbg.profiles.report.call_stacks import call_tree
from adbg.profiles.report.flame import Tree
from adbg.profiles.report.formats.pstats import read
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


class Block:
    """A module as the frameworks make them: everything is called through one ``__call__``."""

    def __init__(self, *inner: Block) -> None:
        self.inner = inner

    def __call__(self) -> None:
        self.forward()

    def forward(self) -> None:
        for block in self.inner:
            block()


class Leaf(Block):
    def forward(self) -> None:
        sum(range(20_000))


def test_modules_within_modules_stand_below_the_first_of_their_calls(tmp_path: Path) -> None:
    """Of a real profile: `pstats` says how long the outermost calls took, and that is what is below them."""
    net = Block(Block(Leaf(), Leaf()), Block(Block(Leaf())), Leaf())
    profiler = cProfile.Profile()
    profiler.enable()  # in the middle of this function, which is not in it
    for _ in range(5):
        net()
    profiler.disable()
    profiler.dump_stats(tmp_path / "x.pstats")
    told = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    profile = read(tmp_path / "x.pstats")
    tree = Tree(profile)
    found = {
        tuple(frame.name for node in tree.path(leaf) if (frame := tree.frame_of(node)) is not None): tree.weight[leaf]
        for leaf in range(len(tree))
    }
    (taken,) = (row[3] for (_, _, name), row in told.items() if name == "__call__")
    assert found["__call__",] == pytest.approx(taken, rel=1e-6)
    assert found[()] == pytest.approx(sum(row[2] for row in told.values()), rel=1e-6)
    (sums,) = (row[2] for (_, _, name), row in told.items() if "sum" in name)
    assert found["__call__", "forward", "<built-in method builtins.sum>"] == pytest.approx(sums, rel=1e-6)
    assert {way[0] for way in found if way} <= {"__call__", "<method 'disable' of '_lsprof.Profiler' objects>"}


def test_a_circle_is_shared_by_what_each_of_its_callers_took() -> None:
    """0 and 1 call 2, for 30 and for 10 s, and 2 and 3 call each other and 4."""
    calls = [
        Call(0, 1, 1, 0.0, 30.0),
        Call(1, 1, 1, 0.0, 10.0),
        Call(2, 9, 2, 4.0, 40.0, (Caller(0, 1, 1, 1.0, 30.0), Caller(1, 1, 1, 1.0, 10.0), Caller(3, 7, 0, 2.0, 33.0))),
        Call(3, 9, 2, 8.0, 39.0, (Caller(2, 9, 2, 8.0, 39.0),)),
        Call(4, 5, 5, 28.0, 28.0, (Caller(3, 5, 5, 28.0, 28.0),)),
    ]
    assert stacks(calls) == {
        (0, 2): 3.0, (0, 2, 3): 6.0, (0, 2, 3, 4): 21.0, (1, 2): 1.0, (1, 2, 3): 2.0, (1, 2, 3, 4): 7.0,
    }  # fmt: skip
