"""The right to take a step of a measurement. Taken by trying: nobody waits for it.

A signal handler of the program's may raise behind any instruction, also between taking a lock and the ``try`` that
gives it back. So the turn is a word about who has it, and what was left behind by an exception is known by this: the
thread that took it is not at a step any more.
"""

from __future__ import annotations

import sys
import threading
import types


class Hold:
    """Taken once."""

    __slots__ = ("depth", "next", "over", "thread")

    def __init__(self, thread: int, depth: int) -> None:
        self.thread = thread
        self.depth = depth  # steps that this thread was in then, of which this is the innermost
        self.over = False
        self.next: dict[str, Hold] = {}  # who took it behind this one: the first that writes it there has it


class Turn:
    """``step``: the code of the function that takes it and gives it back, in its own frame."""

    def __init__(self, step: types.CodeType) -> None:
        self._step = step
        self._last = Hold(0, 1)
        self._last.over = True

    def take(self) -> Hold | None:
        """In a step, for it; None where another one has it. ``over = True`` in what comes back gives it back."""
        last, here = self._newest(), threading.get_ident()
        depth = self._steps(here)
        if not last.over and (depth > last.depth if last.thread == here else self._held(last)):
            return None
        mine = Hold(here, depth)
        if last.next.setdefault("", mine) is not mine:
            return None
        self._last = mine
        return mine

    @property
    def taken(self) -> bool:
        return self._held(self._newest())

    def _newest(self) -> Hold:
        last = self._last
        while last.next:  # its taker was interrupted before it said so
            last = last.next[""]
        return last

    def _held(self, hold: Hold) -> bool:
        return not hold.over and self._steps(hold.thread) >= hold.depth

    def _steps(self, thread: int) -> int:
        """That this thread is in: one inside another, where a signal handler of the program's calls backward."""
        frame, steps = sys._current_frames().get(thread), 0
        while frame is not None:
            steps += frame.f_code is self._step
            frame = frame.f_back
        return steps
