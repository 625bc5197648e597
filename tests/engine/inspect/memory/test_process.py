"""Figures of this process, against psutil's."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from adbg.engine.inspect.memory.process import process_memory, resident


def test_as_psutil_says() -> None:
    ballast = bytearray(os.urandom(1 << 20) * 16)
    mine = process_memory()
    theirs = psutil.Process().memory_full_info()
    assert mine.rss is not None and mine.uss is not None and mine.pss is not None and mine.peak_rss is not None
    slack = 4 << 20  # what psutil and this test take between the two
    assert abs(mine.rss - theirs.rss) < slack
    assert abs(mine.uss - theirs.uss) < slack
    assert abs(mine.pss - theirs.pss) < slack
    assert mine.swap == theirs.swap
    assert mine.uss <= mine.pss <= mine.rss <= mine.peak_rss
    alone = resident()
    assert alone is not None and abs(alone - theirs.rss) < slack
    del ballast


def test_what_is_taken_is_counted() -> None:
    before = process_memory()
    ballast = bytearray(64 << 20)  # zeros: pages are taken as they are written
    for at in range(0, len(ballast), 4096):
        ballast[at] = 1
    after = process_memory()
    assert before.rss is not None and after.rss is not None and before.uss is not None and after.uss is not None
    assert 60 << 20 < after.rss - before.rss < 70 << 20
    assert 60 << 20 < after.uss - before.uss < 70 << 20
    peak = after.peak_rss
    del ballast
    later = process_memory()
    assert later.rss is not None and later.rss < after.rss - (50 << 20)
    assert peak is not None and later.peak_rss is not None and later.peak_rss >= after.rss - (1 << 20)
    assert Path("/proc/self/smaps_rollup").exists()
