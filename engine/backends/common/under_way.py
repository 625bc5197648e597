"""Calls of an engine that began before adbg could see them begin. Any thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from types import FrameType


def in_engine(callers: Collection[str], here: FrameType | None = None) -> bool:
    """Whether a thread may be in the engine: one of its frames is of a function that calls one of ``callers``.
    ``here``: on the calling thread only what called that frame counts."""
    names = frozenset(callers)
    ident = threading.get_ident()
    for thread, innermost in sys._current_frames().items():
        frame = here.f_back if thread == ident and here is not None else innermost
        while frame is not None:
            if not names.isdisjoint(frame.f_code.co_names):
                return True
            frame = frame.f_back
    return False
