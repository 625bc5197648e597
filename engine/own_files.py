"""Which source files are adbg's own, and whether a framework's are shown. Any thread."""

from __future__ import annotations

import os
import sys

_PACKAGES = ("adbg", "adbg.engine", "adbg.tui", "adbg.profiles")  # in a checkout each is a folder of its own


def own_folders() -> tuple[str, ...]:
    """The folders of adbg's imported packages, each with a trailing separator."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file)


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
