"""The stacks that ``faulthandler`` writes as a process crashes, read back: in the front end, and in a process whose
worker crashed."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence

from adbg.engine.own_files import is_written
from adbg.engine.types import SourceLine

STACK_LINE = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)')
_NAMES = {  # Python's words for a fatal signal
    "Segmentation fault": "SIGSEGV",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Killed": "SIGKILL",
}
_SHOWN = 8
_FULL = 100  # frames that are written at most: with fewer the stack was not full
_TIMES = 20  # of these: three functions that call one another


def signal_named(words: str) -> str:
    """ "SIGSEGV" for "Segmentation fault"; the words themselves where they name none."""
    known = words.strip(" .").lower()
    found = next((name for each, name in _NAMES.items() if each.lower() in known), "")
    others = (each.name for each in signal.Signals if (signal.strsignal(each) or "").lower() == known)
    return found or next(others, words.strip(" ."))


def crashed_frames(lines: Sequence[str]) -> tuple[SourceLine, ...]:
    """Frames of the thread that crashed, the innermost first; () where none is told."""
    return tuple(_frames(lines))


def _frames(lines: Sequence[str]) -> Iterator[SourceLine]:
    begun = False
    for line in lines:
        if line.startswith(("Current thread", "Thread ", "Stack (")):
            if begun:
                return
            begun = line.startswith("Current thread")
        found = STACK_LINE.match(line) if begun else None
        if found is not None:
            yield SourceLine(found["file"], int(found["line"]), found["function"])


def inner(frames: Sequence[SourceLine], is_programs: Callable[[SourceLine], bool]) -> Sequence[SourceLine]:
    """What runs innermost and the program's own lines that called it, without those of libraries further out."""
    first = next((place for place, each in enumerate(frames) if is_programs(each)), len(frames))
    last = next((place for place in range(first, len(frames)) if not is_programs(frames[place])), len(frames))
    return frames[:last][:_SHOWN]


def repeated(frames: Sequence[SourceLine]) -> SourceLine | None:
    """The program's call by which a function calls itself until the stack is full; None where none does. Not the
    innermost frame: that may be where the function only begins."""
    own = [each for each in frames if is_written(each.file)] if len(frames) >= _FULL else []
    most = max(own, key=own.count, default=None)
    return most if most is not None and own.count(most) >= _TIMES else None
