"""What is free in the heap. The witness is malloc: what was taken and given back between blocks that stay."""

from __future__ import annotations

import ctypes

import pytest

from adbg.engine.inspect.memory.heap import free_heap

SIZE, COUNT = 4096, 2000  # below what malloc maps by itself


@pytest.mark.skipif(free_heap() is None, reason="this C library does not tell")
def test_holes_between_blocks_that_stay() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    blocks = [libc.malloc(SIZE) for _ in range(2 * COUNT)]
    before = free_heap()
    assert before is not None
    for block in blocks[::2]:
        libc.free(block)
    with_holes = free_heap()
    for block in blocks[1::2]:
        libc.free(block)
    assert with_holes is not None and 0.9 * SIZE * COUNT < with_holes - before < 1.5 * SIZE * COUNT
