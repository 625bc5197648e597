"""Python frames of the user's code on a thread (L2, stdlib only; any thread).

adbg's own frames and those of a framework are not the user's: a hook is called from deep inside both.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Iterator

from adbg.engine.backends import REGISTRY
from adbg.engine.protocol.messages import Source, StackFrame, StackTraceBody
from adbg.engine.types import SourceLine

_BOOTSTRAP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bootstrap")
_FOREIGN = frozenset(REGISTRY) | {"adbg"}


def is_user(frame: types.FrameType) -> bool:
    """Whether ``frame`` runs code that is neither adbg's nor a framework's."""
    name = frame.f_globals.get("__name__")
    return not (isinstance(name, str) and name.partition(".")[0] in _FOREIGN)


def user_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost user frame from ``frame`` outwards; None when there is none (a thread that the framework made)."""
    while frame is not None and not is_user(frame):
        frame = frame.f_back
    return frame


def failed_frame(error: BaseException) -> types.FrameType | None:
    """The innermost user frame that ``error`` came through; its locals are still there."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        if is_user(trace.tb_frame):
            found = trace.tb_frame
        trace = trace.tb_next
    return found


def source_line(frame: types.FrameType | None) -> SourceLine | None:
    if frame is None:
        return None
    code = frame.f_code
    return SourceLine(absolute(code.co_filename), frame.f_lineno or code.co_firstlineno, code.co_name)


def absolute(file: str) -> str:
    """``file`` made absolute; pseudo names such as "<string>" stay."""
    return file if file.startswith("<") else os.path.abspath(file)


def _outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def running_stack(thread: int, start: int, levels: int) -> StackTraceBody:
    """``stackTrace`` of a thread that is not parked: where it is at this moment. ``thread`` 0: the main thread."""
    ident = thread or threading.main_thread().ident or 0
    live, note = _of_the_program(list(_outwards(sys._current_frames().get(ident))))
    frames = []
    for number, frame in enumerate(live, 1):
        line = source_line(frame)
        assert line is not None
        source = Source(os.path.basename(line.file), line.file)
        frames.append(StackFrame(number, line.function, line.line, source=source))
    page = frames[start : start + levels] if levels else frames[start:]
    return StackTraceBody(page, len(frames), note)


def _of_the_program(frames: list[types.FrameType]) -> tuple[list[types.FrameType], str]:
    """Without adbg's own, and while Python starts, without what brought adbg in; and why there are none left."""
    entered = next((place for place, frame in enumerate(frames) if _brings_in(frame)), None)
    if entered is None:
        live = [frame for frame in frames if not _own(frame)]
        return live, "" if live else "no Python code on that thread"
    inner = frames[:entered]
    live = [] if any(map(_own, inner)) else [frame for frame in inner if not frame.f_code.co_filename.startswith("<")]
    return live, "" if live else "the program has not begun: Python starts, and waits for this front end"


def _brings_in(frame: types.FrameType) -> bool:
    """A frame of ``engine/bootstrap``, which Python runs as its ``sitecustomize``."""
    return os.path.dirname(frame.f_code.co_filename) == _BOOTSTRAP


def _own(frame: types.FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and (name == "adbg" or name.startswith("adbg."))
