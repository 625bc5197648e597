"""Figures of this process, against psutil's."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import psutil

from adbg.engine.inspect.memory.process import process_memory, resident

ROUNDS = 5  # the system takes pages from a process, and other threads take some, between any two looks at it
MIB = 1 << 20


def in_a_round(holds: Callable[[], str]) -> None:
    """In one of a few rounds it holds; each says what did not, or nothing."""
    said = []
    for _ in range(ROUNDS):
        said.append(holds())
        if not said[-1]:
            return
    raise AssertionError("\n".join(said))


def test_as_psutil_says() -> None:
    ballast = bytearray(os.urandom(MIB) * 16)

    def holds() -> str:
        mine = process_memory()
        theirs = psutil.Process().memory_full_info()
        alone = resident()
        assert mine.rss is not None and mine.uss is not None and mine.pss is not None and mine.peak_rss is not None
        assert mine.swap is not None and alone is not None
        assert mine.uss <= mine.pss <= mine.rss <= mine.peak_rss
        pairs = [(mine.rss, theirs.rss), (mine.uss, theirs.uss), (mine.pss, theirs.pss), (mine.swap, theirs.swap)]
        same = all(abs(one - other) < 4 * MIB for one, other in [*pairs, (alone, theirs.rss)])
        return "" if same else f"{mine}, {alone} beside {theirs}"

    in_a_round(holds)
    del ballast


def test_what_is_taken_is_counted() -> None:
    def holds() -> str:
        before = process_memory()
        ballast = mmap.mmap(-1, 64 * MIB)  # fresh pages: malloc may have as much from what was freed
        for at in range(0, len(ballast), 4096):
            ballast[at] = 1
        after = process_memory()
        ballast.close()
        later = process_memory()
        assert before.rss is not None and after.rss is not None and before.uss is not None and after.uss is not None
        assert later.rss is not None and later.peak_rss is not None
        assert later.peak_rss >= after.rss - MIB, "the peak stays, as far as the kernel has noted it"
        taken = [after.rss - before.rss, after.uss - before.uss, after.rss - later.rss]
        return "" if all(60 * MIB < each < 70 * MIB for each in taken) else f"{before}, {after}, {later}"

    in_a_round(holds)
    assert Path("/proc/self/smaps_rollup").exists()
