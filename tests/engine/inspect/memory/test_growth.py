"""When a variable is called growing, on looks made by hand at the iterations where there are looks."""

from __future__ import annotations

import collections

import pytest

from adbg.engine.inspect.memory.growth import Look, Size, grows, is_bounded
from adbg.engine.inspect.memory.process import resident

AT = (3, 6, 9, 18, 36, 72, 144, 288)


def told(sizes: list[Size]) -> list[tuple[int, str]]:
    """(iteration, by what) of the looks after which it is told."""
    looks = [Look(at, {"x": size}) for at, size in zip(AT, sizes)]
    return [(AT[end - 1], by) for end in range(1, len(looks) + 1) if (by := grows(looks[:end], "x"))]


def graphs(counts: list[int]) -> list[Size]:
    return [Size(count, count, 4 * count) for count in counts]


def test_what_keeps_graphs_is_told_at_the_third_look() -> None:
    assert told(graphs([3, 6, 9, 18]))[0] == (9, "tensors")
    assert told(graphs([1, 1, 1, 2, 4, 8]))[0] == (36, "tensors"), "one in ten iterations"
    assert told([Size(1, 1, 4, older) for older in (8, 24, 48, 96)])[0] == (9, "nodes"), "a sum of losses"


@pytest.mark.parametrize(
    "counts",
    [
        [1, 1, 1, 1, 1],
        [4, 4, 4, 4, 4],
        [0, 0, 0, 4, 4],
        [3, 5, 5, 5, 5],
        [4, 6, 7, 7, 7],
        [3, 6, 2, 8, 4],
        [8, 12, 14, 16],
    ],
)
def test_what_is_bounded_is_not(counts: list[int]) -> None:
    assert told(graphs(counts)) == []
    assert told([Size(1, 1, 4, count) for count in counts]) == []


def test_without_graphs_it_must_be_a_part_of_the_process() -> None:
    mine = resident()
    assert mine is not None
    assert told([Size(at, 0, 4 * at) for at in AT]) == [], "numbers"
    assert told([Size(at, 0, at * mine // 50) for at in AT])[0] == (9, "tensors")
    fills = [Size(min(at, 50), 0, min(at, 50) * mine // 5000) for at in AT]
    assert told(fills) == [], "a cache of the data, a hundredth of the process"


def test_a_queue_that_drops_is_bounded() -> None:
    assert is_bounded([object(), collections.deque(maxlen=3)]) and not is_bounded([[], collections.deque()])
    assert is_bounded([collections.deque(maxlen=50)], room=100) and not is_bounded([collections.deque(maxlen=500)], 100)
