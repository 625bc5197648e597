"""Whose code a Python frame runs: the user's, a framework's, adbg's own, or Python's machinery that starts modules.

Decided by the file, of generated code by its module. Runs on any thread: the one that stops, or the reader for a
program that runs.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import types
from collections.abc import Iterator

from adbg.engine.backends import REGISTRY
from adbg.engine.own_files import SHOWN, own_folders
from adbg.engine.types import SourceLine

USER, FRAMEWORK, OWN, PYTHON = "user", "framework", "adbg", "python"
_OWN_FOLDERS = own_folders()
_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap")
_STARTERS = (f"{os.sep}runpy.py", f"{os.sep}importlib{os.sep}_bootstrap.py")
_MAX_DEPTH = 2000  # frames looked at; a recursion deeper than that is cut
_roots: dict[str, str] = {}  # imported framework -> its folder with a trailing separator


def framework_roots() -> tuple[str, ...]:
    """The folders of the frameworks imported so far."""
    for name in REGISTRY:
        if name not in _roots and (file := getattr(sys.modules.get(name), "__file__", None)):
            _roots[name] = os.path.dirname(os.path.abspath(file)) + os.sep
    return tuple(_roots.values())


def owner_of(frame: types.FrameType, frameworks: tuple[str, ...]) -> str:
    """USER, FRAMEWORK, OWN or PYTHON. ``frameworks``: ``framework_roots()``."""
    file = frame.f_code.co_filename
    if file.startswith("<"):  # generated code: "<string>", "<decorator-gen-7>"
        name = frame.f_globals.get("__name__")
        top = name.partition(".")[0] if isinstance(name, str) else ""
        if top == "adbg" or top in REGISTRY:
            return OWN if top == "adbg" else FRAMEWORK
    return _owner_of_file(file, frameworks)


@functools.lru_cache(maxsize=4096)
def _owner_of_file(file: str, frameworks: tuple[str, ...]) -> str:
    if file.startswith("<frozen ") or file.endswith(_STARTERS):
        return PYTHON
    if file.startswith(_OWN_FOLDERS):
        return OWN
    return FRAMEWORK if file.startswith(frameworks) else USER


def _outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost user frame from ``frame`` outwards; None when there is none (a thread that the framework made)."""
    roots = framework_roots()
    return next((each for each in _outwards(frame) if owner_of(each, roots) == USER), None)


def failed_frame(error: BaseException) -> types.FrameType | None:
    """The innermost user frame that ``error`` came through, with ``frames all`` the framework's too; its locals are
    still there."""
    roots = framework_roots()
    wanted = (USER, FRAMEWORK) if SHOWN.all else (USER,)
    found = None
    trace = error.__traceback__
    while trace is not None:
        if owner_of(trace.tb_frame, roots) in wanted:
            found = trace.tb_frame
        trace = trace.tb_next
    return found


def live_frames(innermost: types.FrameType | None) -> list[types.FrameType]:
    """Frames from ``innermost`` outwards: the user's; when there are none, all that are not adbg's; else all. With
    ``frames all`` the framework's too, and those that ``innermost`` called: they run on this thread, inside it."""
    roots = framework_roots()
    if SHOWN.all and innermost is not None:
        frames = [frame for frame, _ in zip(_outwards(sys._getframe()), range(_MAX_DEPTH))]
        place = frames.index(innermost) if innermost in frames else 0
        inner = [frame for frame in frames[:place] if owner_of(frame, roots) == FRAMEWORK]
        outer = [frame for frame, _ in zip(_outwards(innermost), range(_MAX_DEPTH))]
        shown = inner + [frame for frame in outer if owner_of(frame, roots) in (USER, FRAMEWORK)]
        return [frame for frame in shown if not str(frame.f_globals.get("__name__")).startswith("adbg.")]  # disguised
    frames = [frame for frame, _ in zip(_outwards(innermost), range(_MAX_DEPTH))]
    owners = [owner_of(frame, roots) for frame in frames]
    for wanted in ((USER,), (USER, FRAMEWORK, PYTHON)):
        chosen = [frame for frame, owner in zip(frames, owners) if owner in wanted]
        if chosen:
            return chosen
    return frames


def running_frames(thread: int) -> tuple[list[types.FrameType], str]:
    """The frames that a running thread is in at this moment, without adbg's own and, while Python starts, without those
    that brought adbg in; and why there are none. ``thread`` 0: the main thread.
    """
    ident = thread or threading.main_thread().ident or 0
    roots = framework_roots()
    frames = list(_outwards(sys._current_frames().get(ident)))
    owners = [owner_of(frame, roots) for frame in frames]
    entered = next((place for place, frame in enumerate(frames) if _brings_in(frame)), None)
    if entered is None:
        live = [frame for frame, owner in zip(frames, owners) if owner != OWN]
        return live, "" if live else "no Python code on that thread"
    if OWN in owners[:entered]:
        live = []
    else:
        live = [frame for frame in frames[:entered] if not frame.f_code.co_filename.startswith("<")]
    return live, "" if live else "the program has not started: Python is starting and waits for this front end"


def _brings_in(frame: types.FrameType) -> bool:
    """A frame of ``engine/bootstrap``, which Python runs as its ``sitecustomize``."""
    return os.path.dirname(frame.f_code.co_filename) == _BOOTSTRAP


def source_line(frame: types.FrameType | None) -> SourceLine | None:
    """Where ``frame`` is, the file absolute; pseudo names such as "<string>" stay."""
    if frame is None:
        return None
    code = frame.f_code
    file = code.co_filename if code.co_filename.startswith("<") else os.path.abspath(code.co_filename)
    return SourceLine(file, frame.f_lineno or code.co_firstlineno, code.co_name)
