"""The texts of forward stacks, as Paddle asks for them: ``traceback.format_stack`` for each operator while they are on.

Paddle 3.3.1 never gives back its reference to the list it is answered with: at 20 frames some 4 kB an operator, for
ever. While stacks are on the function is ours, and answers Paddle with one list a thread, refilled each time: Paddle
reads it at once. A call from Python, recognised by its code naming the function, gets the function's own answer, and
only that one may raise (``shield``). Runs on the threads of the forward; put in and taken out on any thread.

Python's function asks the file system about every file on the stack and makes the same texts again for each operator
(19 us at 8 frames); here a text is made once for each line of code that is met (2.6 us then). So stacks cost less under
adbg than with Paddle's own flag.
"""

from __future__ import annotations

import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.common.shield import shield
from adbg.engine.outside import own

Listener = Callable[[list[str]], None]


_MOST_TEXTS = 50_000  # lines of code whose text is kept
_REPEATED = 3  # equal frames in a row after which Python writes "[Previous line repeated …]"


class Frames:
    """Texts of frames as ``traceback.format_stack`` writes them, kept by line of code."""

    def __init__(self) -> None:
        self._texts: dict[tuple[types.CodeType, int], str] = {}

    def format(self, frame: types.FrameType | None) -> list[str] | None:
        """Outermost first, ``frame`` last; None where Python would leave something out (deep recursion,
        ``sys.tracebacklimit``)."""
        if hasattr(sys, "tracebacklimit"):
            return None
        texts, lines = self._texts, []
        before, repeated = None, 0
        while frame is not None:
            key = (frame.f_code, frame.f_lineno)
            text = texts.get(key)
            if text is None:
                text = self._text(frame, key)
            lines.append(text)
            repeated = repeated + 1 if text is before else 1
            if repeated > _REPEATED:
                return None
            before = text
            frame = frame.f_back
        lines.reverse()
        return lines

    def _text(self, frame: types.FrameType, key: tuple[types.CodeType, int]) -> str:
        if len(self._texts) >= _MOST_TEXTS:
            self._texts = {}
        text = "".join(traceback.format_list(traceback.extract_stack(frame, 1)))
        return self._texts.setdefault(key, text)


class _Answer(threading.local):
    def __init__(self) -> None:
        self.lines: list[str] = []


class StackTexts:
    """The function in ``traceback``'s place. Listeners get every text, and may add lines to it."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()
        self._answer = _Answer()
        self._frames = Frames()
        self._original: Any = None
        self._ours: Any = None
        self._on = False

    def put_in(self) -> None:
        if not self._on:
            self._on = True
            self._original = traceback.format_stack
            self._ours = traceback.format_stack = self._function(self._original)

    def take_out(self) -> None:
        """Python's own back; where somebody wrapped ours meanwhile, ours stays below it and only passes on."""
        self._on = False
        if self._ours is not None and traceback.format_stack is self._ours:
            traceback.format_stack = self._original
        self._original = self._ours = None

    def listen(self, hear: Listener) -> None:
        with self._lock:
            self._listeners += (hear,)

    def forget(self, hear: Listener) -> None:
        with self._lock:
            self._listeners = tuple([other for other in self._listeners if other != hear])

    def abandon(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = threading.Lock()

    def _function(self, original: Any) -> Any:
        def quick(f: types.FrameType | None, limit: int | None, caller: types.FrameType) -> list[str] | None:
            if f is not None or limit is not None or not self._on or "format_stack" in caller.f_code.co_names:
                return None
            lines: list[str] = self._frames.format(caller) or original(caller, None)
            for hear in self._listeners:
                try:
                    hear(lines)
                except own(Exception):  # a Layer that answers oddly: nothing of that may reach Paddle
                    continue
            answer = self._answer.lines
            answer[:] = lines
            return answer

        def plain(f: types.FrameType | None, limit: int | None, caller: types.FrameType) -> list[str]:
            asked: list[str] = original(f if f is not None else caller, limit)
            return asked

        return shield(quick, plain)
