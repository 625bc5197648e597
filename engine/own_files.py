"""Which source files are adbg's own. Any thread."""

from __future__ import annotations

import os
import sys

_PACKAGES = ("adbg", "adbg.engine", "adbg.tui", "adbg.profiles")  # in a checkout each is a folder of its own


def own_folders() -> tuple[str, ...]:
    """The folders of adbg's imported packages, each with a trailing separator."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file)
