"""Frames of Python's own that start a process or a thread: in a stack nobody looks for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_STARTS = re.compile(r"/python3\.\d+/(?:multiprocessing/\w+|concurrent/futures/\w+|threading)\.py$")
# Of these files' functions: what waits in a queue or a pipe there is what one looks for in a hang.
_STARTING = frozenset({
    "_bootstrap", "_bootstrap_inner", "run", "_main", "spawn_main", "main", "_launch", "__init__", "_Popen", "start",
    "_worker", "_process_worker", "_serve_one",
})  # fmt: skip
_FEW = 3  # of them are shown as they are


def starts(file: str, function: str) -> bool:
    """Whether a frame is of the library's code that starts processes and threads."""
    return function in _STARTING and _STARTS.search(file) is not None


def folded(frames: Sequence[tuple[str, str]], selected: int = -1) -> Iterator[tuple[int, int]]:
    """(number, frames) of a stack's frames by their files and functions, from the innermost: 1 for a frame that is
    shown, more for a row of those that start a process or a thread, and of which none is ``selected``."""
    number = 0
    while number < len(frames):
        end = number
        while end < len(frames) and starts(*frames[end]):
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
