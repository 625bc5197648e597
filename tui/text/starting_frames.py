"""Frames of Python's own that start a process or a thread: in a stack nobody looks for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_STARTS = re.compile(r"/python3\.\d+/(?:multiprocessing/\w+|concurrent/futures/\w+|threading)\.py$")
_FEW = 3  # of them are shown as they are


def starts(file: str) -> bool:
    """Whether ``file`` is of the library that starts processes and threads."""
    return _STARTS.search(file) is not None


def folded(files: Sequence[str], selected: int = -1) -> Iterator[tuple[int, int]]:
    """(number, frames) of a stack's frames by their files, from the innermost: 1 for a frame that is shown, more for a
    row of those that start a process or a thread, and of which none is ``selected``."""
    number = 0
    while number < len(files):
        end = number
        while end < len(files) and starts(files[end]):
            end += 1
        if end - number >= _FEW and not number <= selected < end:
            yield number, end - number
            number = end
        else:
            yield number, 1
            number += 1


def fold_text(count: int) -> str:
    """ "6 frames of Python's that start a process or a thread"."""
    return f"{count} frames of Python's that start a process or a thread"
