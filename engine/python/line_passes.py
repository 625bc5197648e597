"""When a thread comes to chosen lines and leaves them: once for a comprehension, a generator or a recursion within
them, and once for a statement of several lines, to whose first line Python comes back for its call. On the thread that
runs the lines; a frame runs on one thread at a time.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from types import CodeType, FrameType

from adbg.engine.places import Lines

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # parts of the statement that has them
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MOST_SUSPENDED = 1000  # statements begun in generators that may never go on
# What computes. A jump, and what ends a loop or a function, is told to reach to the end of the loop's body.
_COMPUTES = ("CALL", "PRECALL", "BINARY_", "BUILD_", "COMPARE_", "CONTAINS_", "IS_OP", "LOAD_ATTR", "LOAD_METHOD",
             "STORE_", "UNARY_")  # fmt: skip
_LOOPS = ("FOR_ITER", "GET_ANEXT")
_NO_LOOPS = ("JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")  # an await; of 3.10: at the end of a loop's body
_NO_END = 1 << 31


class Passes:
    """A region: ``enter`` before its first line, ``leave`` behind its last, by the outermost frame that is in it."""

    def __init__(self, lines: Lines, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self.lines = lines
        self._enter = enter
        self._leave = leave
        self._inside: dict[FrameType, bool] = {}  # whether no frame that called it is

    def at(self, frame: FrameType, line: int) -> None:
        """``line`` of the frame runs next; 0: the frame is left."""
        inside = self._inside
        if self.lines.holds(frame.f_code.co_filename, line):
            if frame not in inside:
                outermost = not (inside and self._within(frame))
                inside[frame] = outermost
                if outermost:
                    self._enter()
        elif inside.pop(frame, False):
            self._leave()

    def _within(self, frame: FrameType) -> bool:
        """Asked of the frames themselves: a count would be wrong for good where one was left untold."""
        above = frame.f_back
        while above is not None and above not in self._inside:
            above = above.f_back
        return above is not None

    def clear(self) -> None:
        left, self._inside = self._inside, {}
        for outermost in left.values():
            if outermost:
                self._leave()


class Turns:
    """A line at which something begins that lasts until it runs again: ``begins`` each time that the statement there
    is begun, by the outermost frame that is at it. In its frame it is begun again where Python jumps back to it, or
    where the frame was at a line that is none of the statement's meanwhile."""

    def __init__(self, lines: Lines, begins: Callable[[], None]) -> None:
        self.lines = lines
        self._begins = begins
        self._begun: dict[int, int] = {}  # of a frame at the statement, by its address: the instruction it began with
        self._ends: dict[CodeType, int] = {}

    def at(self, frame: FrameType, line: int) -> None:
        begun, code = self._begun, frame.f_code
        if not self.lines.holds(code.co_filename, line):
            if begun and id(frame) in begun and not self._goes_on(code, line):
                begun.pop(id(frame), None)
            return
        first = begun.get(id(frame))
        if first is not None and frame.f_lasti > first:
            return  # back from an argument on a line of its own, or at the end of a ``with``
        if code.co_name in _COMPREHENSIONS or (first is None and begun and self._within(frame)):
            return
        if len(begun) >= _MOST_SUSPENDED:
            begun.clear()
        begun[id(frame)] = frame.f_lasti
        self._begins()

    def _goes_on(self, code: CodeType, line: int) -> bool:
        """On a later line of the statement; a generator that waits in the middle of it goes on there."""
        if not line:
            return bool(code.co_flags & _RESUMED)
        last = self._ends.get(code)
        if last is None:
            last = self._ends[code] = last_line(code, self.lines.first)
        return self.lines.first <= line <= last

    def _within(self, frame: FrameType) -> bool:
        """A function that calls itself there or behind it, and what else the statement calls, is part of it."""
        above = frame.f_back
        while above is not None:
            if id(above) in self._begun and (above.f_code is frame.f_code or above.f_lineno == self.lines.first):
                return True
            above = above.f_back
        return False

    def clear(self) -> None:
        self._begun = {}


def last_line(code: CodeType, line: int) -> int:
    """The last line from which Python comes back to ``line`` without having begun it anew: only the head of a loop is
    begun by going on downwards; it ends where what it computes ends, which Python 3.10 does not tell."""
    ranges = [(begin, end) for begin, end, number in code.co_lines() if number == line]
    ends, loops = [line], False
    for each in dis.get_instructions(code):
        if not any(begin <= each.offset < end for begin, end in ranges):
            continue
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            loops = loops or each.opname in _LOOPS or (each.argval < each.offset and each.opname not in _NO_LOOPS)
        elif each.opname in _LOOPS:
            loops = True
        elif each.opname.startswith(_COMPUTES) and (positions := getattr(each, "positions", None)):
            ends.append(positions.end_lineno or 0)
    return max(ends) if loops else _NO_END
