"""Which Python frames of a thread a person wants to see (L2, stdlib only).

Runs on the parked thread, or on the reader thread for a program that runs (``sys._current_frames``). adbg's own
frames and those of the framework are left out unless nothing else is there.
"""

from __future__ import annotations

import functools
import os
import sys
import types

import adbg
import adbg.engine

_OWN = tuple(os.path.dirname(os.path.abspath(m.__file__)) + os.sep for m in (adbg, adbg.engine) if m.__file__)
_MAX_DEPTH = 2000  # frames looked at; a recursion deeper than that is cut


def framework_root(name: str) -> str:
    """The folder of an imported framework with a trailing separator, "" when it is not imported."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return os.path.dirname(os.path.abspath(file)) + os.sep if file else ""


@functools.lru_cache(maxsize=4096)
def kind_of(file: str, framework: str) -> str:
    """ "user", "framework", "adbg" or "python" (the machinery that starts modules)."""
    if file.startswith("<frozen ") or file.endswith((f"{os.sep}runpy.py", f"{os.sep}importlib{os.sep}_bootstrap.py")):
        return "python"
    if file.startswith(_OWN):
        return "adbg"
    if framework and file.startswith(framework):
        return "framework"
    return "user"


def frame_kind(frame: types.FrameType, framework: str) -> str:
    """``kind_of`` the frame's file."""
    return kind_of(frame.f_code.co_filename, framework)


def live_frames(innermost: types.FrameType | None, framework: str = "") -> list[types.FrameType]:
    """Frames from ``innermost`` outwards: the user's; when there are none, all that are not adbg's; else all.

    ``framework`` is ``framework_root`` of the backend's framework.
    """
    frames: list[types.FrameType] = []
    frame = innermost
    while frame is not None and len(frames) < _MAX_DEPTH:
        frames.append(frame)
        frame = frame.f_back
    for wanted in (("user",), ("user", "framework", "python")):
        chosen = [f for f in frames if frame_kind(f, framework) in wanted]
        if chosen:
            return chosen
    return frames
