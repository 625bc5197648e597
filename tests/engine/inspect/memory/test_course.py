"""When growing memory is called growing, on samples made by hand."""

from __future__ import annotations

import random
import statistics

import pytest

from adbg.engine.inspect.memory import course
from adbg.engine.inspect.memory.course import FEWEST, trend
from adbg.engine.median import median
from adbg.engine.protocol.messages import MemorySample

MB = 1 << 20


def samples(values: list[float]) -> list[MemorySample]:
    return [MemorySample(place + 1, int(value)) for place, value in enumerate(values)]


def test_steady_growth_is_told_with_its_slope() -> None:
    noise = random.Random(1)
    slope, grows = trend(samples([200 * MB + 0.5 * MB * i + noise.uniform(-1, 1) * MB for i in range(100)]))
    assert grows and slope is not None and abs(slope - 0.5 * MB) < 0.1 * MB


def test_what_is_no_growth() -> None:
    noise = random.Random(2)
    flat = [200 * MB + noise.uniform(-1, 1) * MB for _ in range(100)]
    warm = [200 * MB + min(i, 30) * MB for i in range(100)]  # buffers that fill up, then stay
    step = [200 * MB + 50 * MB * (i > 75) for i in range(100)]  # an arena that is taken once
    saw = [200 * MB + (i % 25) * MB for i in range(100)]  # garbage that is collected now and then
    assert [trend(samples(values))[1] for values in (flat, warm, step, saw)] == [False] * 4
    pages = [200 * MB + 4096 * i for i in range(30)]
    assert not trend(samples(pages))[1], "60 kB in all"


def test_few_samples_have_no_trend() -> None:
    assert trend([]) == (None, False)
    assert trend(samples([1.0 * MB * i for i in range(FEWEST - 1)])) == (None, False)
    assert trend(samples([1.0 * MB * i for i in range(FEWEST)]))[1]


def test_the_numbers_are_those_of_the_standard_library() -> None:
    """``statistics`` itself is not loaded into programs."""
    made = random.Random(3)
    for count in (1, 2, 5, 20, 61):
        ys = [made.gauss(1e8, 1e6) for _ in range(count)]
        assert median(ys) == statistics.median(ys)
        if count > 2:
            xs = [float(n) for n in range(7, 7 + 2 * count, 2)]
            slope, intercept = statistics.linear_regression(xs, ys)
            noise = statistics.pstdev([y - slope * x - intercept for x, y in zip(xs, ys)])
            assert course._line(xs, ys) == pytest.approx((slope, noise))
