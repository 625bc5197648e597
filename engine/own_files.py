"""Which source files are adbg's own, which a library's, and whether a framework's are shown. Any thread."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

_PACKAGES = ("adbg", "adbg.engine", "adbg.tui", "adbg.profiles")  # in a checkout each is a folder of its own


def own_folders() -> tuple[str, ...]:
    """The folders of adbg's imported packages, each with a trailing separator."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file)


@functools.lru_cache(4096)
def is_library(file: str) -> bool:
    """Installed, or Python's own."""
    return f"{os.sep}site-packages{os.sep}" in file or os.path.abspath(file).startswith(_libraries())


@functools.lru_cache(4096)
def is_programs(file: str) -> bool:
    """Neither a library's, nor Python's, nor adbg's: in a checkout, adbg's files lie in no library."""
    return not is_library(file) and not os.path.abspath(file).startswith(own_folders())


def is_written(file: str) -> bool:
    """The program's, and a file that can be opened: no ``<string>``, no ``<frozen importlib._bootstrap>``."""
    return not file.startswith("<") and is_programs(file)


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Not by ``site``: that is being imported while adbg is brought in, and whoever imports it on another thread
    waits."""
    paths = sysconfig.get_paths()
    return tuple({os.path.abspath(paths[each]) + os.sep for each in ("stdlib", "platstdlib", "purelib", "platlib")})


class ShownFrames:
    """Whether frames in the framework's package are shown in stacks and count for breakpoints at lines: for those who
    develop it. ``version`` changes with it: what is kept of stacks carries it."""

    def __init__(self) -> None:
        self.all = False
        self.version = 0

    def set(self, all: bool) -> None:
        if all != self.all:
            self.all = all
            self.version += 1


SHOWN = ShownFrames()  # of this process
