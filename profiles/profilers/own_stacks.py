"""Collapsed stacks without adbg's own part: its threads, its frames, and the samples in which its own code ran."""

from __future__ import annotations

import re

_THREAD = re.compile(r"thread \([^)]*\): \"?adbg-")
_LIBRARY = re.compile(r" \(([^()]*\.so[.\d]*)\)$")
_INTERPRETER = re.compile(r"lib(python[\d.]*|c|m|pthread|dl)[.-]|ld-linux|linux-vdso")


# A thread that waits for another one, for time or for a file is in one of these, or below it in the C library.
_WAITS = re.compile(
    r"(__)?(pthread_(cond_(timed|clock)?wait|join|barrier_wait)\w*|sem_(timed|clock)?wait\w*|futex_\w+|epoll_p?wait2?|"
    r"p?poll|p?select|(clock_)?nanosleep|usleep|sleep|sigwait\w*|wait(pid|id|4))(@|$)"
)
_C_LIBRARY = re.compile(r"/lib(c|pthread)[.-][^/]*$|ld-linux|linux-vdso")


def without_waits(text: str) -> tuple[str, int]:
    """``text`` without the samples of threads that wait, and how many those are: py-spy takes some for running, as a
    thread that is just being woken up. All of it where nothing else is there."""
    kept, gone = [], 0
    for line in text.splitlines(keepends=True):
        stack, _, count = line.rpartition(" ")
        if _waits(stack.split(";")):
            gone += int(count)
        else:
            kept.append(line)
    return ("".join(kept), gone) if kept else (text, 0)


def _waits(frames: list[str]) -> bool:
    for frame in reversed(frames):
        if _WAITS.match(frame.partition(" (")[0]):
            return True
        library = _LIBRARY.search(frame)
        if library is None or not _C_LIBRARY.search(library[1]):
            return False
    return False


def without_own(text: str, folders: tuple[str, ...], native: bool) -> tuple[str, int, int]:
    """``text`` without them, the samples left out of threads of the program's, and those that stay. Of a backward,
    which is entered through a function of adbg's, only that frame goes: a library of the framework's runs below it."""
    kept: dict[str, int] = {}
    left = 0
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        if not count.isdigit():
            continue
        frames = stack.split(";")
        if _THREAD.match(frames[0]):
            continue
        own = [place for place, frame in enumerate(frames) if _file(frame).startswith(folders)]
        if own and native and not any(map(_runs, frames[own[-1] + 1 :])):
            left += int(count)
            continue
        if own:
            gone = set(own)
            stack = ";".join(frame for place, frame in enumerate(frames) if place not in gone)
        kept[stack] = kept.get(stack, 0) + int(count)
    return "".join(f"{stack} {count}\n" for stack, count in kept.items()), left, sum(kept.values())


def _file(frame: str) -> str:
    return frame.rpartition(" (")[2]


def _runs(frame: str) -> bool:
    """The program's or the framework's code, below a frame of adbg's: not the interpreter at work for adbg."""
    library = _LIBRARY.search(frame)
    if library is None:
        return frame.endswith(")") and ":" in _file(frame)  # a Python frame
    return _INTERPRETER.search(library[1].rpartition("/")[2]) is None
