"""The texts of forward stacks, as Paddle asks for them: ``traceback.format_stack`` for each operator while they are on.

Paddle 3.3.1 never gives back its reference to the list it is answered with: at 20 frames some 4 kB an operator, for
ever. While stacks are on the function is ours, and answers Paddle with one list a thread, refilled each time: Paddle
reads it at once. Whoever else calls it (``asking``) gets the function's own answer, and only that one may raise
(``shield``). Runs on the threads of the forward; put in and taken out on any thread.

Python's function asks the file system about every file on the stack and makes the same texts again for each operator
(19 us at 8 frames); here a text is made once for each line of code that is met (2.6 us then). So stacks cost less under
adbg than with Paddle's own flag.

Each text ends with a number of its own, counted over the process: Paddle tells no order in which it makes nodes, and
keeps the text on them (0.3 us). While Paddle writes such texts to files of the program's (``dumps``), it gets Python's
own, without number and Layer.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.common.shield import shield
from adbg.engine.backends.paddle.native.asking import Asking
from adbg.engine.backends.paddle.native.dumps import writing_stacks
from adbg.engine.outside import own
from adbg.engine.own_files import own_folders

Listener = Callable[[list[str]], None]


_OWN = own_folders()
_MOST_TEXTS = 50_000  # lines of code whose text is kept
_REPEATED = 3  # equal frames in a row after which Python writes "[Previous line repeated …]"
ORDER = "  # operator "  # and a number, in the last line of each text
LONGEST_ORDER = len(ORDER) + 20
GIVEN = "  # Paddle keeps no stack of this operator\n"  # the first line of one that adbg put there


class Frames:
    """Texts of frames as ``traceback.format_stack`` writes them, kept by line of code. Known by the address of the code
    object, which is held beside the text: equal ones may be of different files."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, int], tuple[types.CodeType, str]] = {}

    def format(self, frame: types.FrameType | None) -> list[str] | None:
        """Outermost first, ``frame`` last, of adbg's own frames ""; None where Python would leave something out (deep
        recursion, ``sys.tracebacklimit``)."""
        if hasattr(sys, "tracebacklimit"):
            return None
        texts, lines = self._texts, []
        before, repeated = None, 0
        while frame is not None:
            known = texts.get((id(frame.f_code), frame.f_lineno))
            text = known[1] if known is not None else self._text(frame)
            lines.append(text)
            repeated = repeated + 1 if text is before else 1
            if repeated > _REPEATED:
                return None
            before = text
            frame = frame.f_back
        lines.reverse()
        return lines

    def _text(self, frame: types.FrameType) -> str:
        if len(self._texts) >= _MOST_TEXTS:
            self._texts = {}
        own = frame.f_code.co_filename.startswith(_OWN)  # around a Layer, an operator: no part of the program
        text = "" if own else "".join(traceback.format_list(traceback.extract_stack(frame, 1)))
        return self._texts.setdefault((id(frame.f_code), frame.f_lineno), (frame.f_code, text))[1]


def ordered(text: str) -> tuple[str, int]:
    """A text without its number, and the number; 0 where it has none."""
    at = text.rfind(ORDER, -LONGEST_ORDER)
    number = text[at + len(ORDER) :].strip() if at >= 0 else ""
    return (text[:at], int(number)) if number.isdecimal() else (text, 0)


_FORWARD = re.compile(r"\A(\n\n  Forward Traceback \(most recent call last\):\n).*?\n(?=\n-+\nC\+\+ )", re.DOTALL)
_SUMMARY = re.compile(r"\n-+\nError Message Summary:\n-+\n(\w+?)Error: (.*)\Z", re.DOTALL)
_NODE = re.compile(r"\n  \[GradNode < [^\n]* > error\]\Z")
_NUMBER = re.compile(rf"^{re.escape(ORDER)}\d+\n", re.MULTILINE)


def at_level(text: str, level: int) -> str:
    """Paddle's error text as call stack level ``level`` would have it, made of one at level 3. From 3.3.1's own texts
    of the same errors: 3 has the forward stack of the node and its name, 2 the C++ stack, 1 and 0 the message alone."""
    text = _NUMBER.sub("", text)
    if GIVEN in text:
        text = _FORWARD.sub(r"\1  \n", text)
    if level >= 3 or "Error Message Summary:" not in text:
        return text
    text = _FORWARD.sub("\n", text)
    ended = _NODE.sub("\n", text)
    found = _SUMMARY.search(ended)
    if level == 2 or found is None:
        return ended
    return f"({found[1]}) {found[2]}"


class _Answer(threading.local):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0


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
        self._asking: Asking | None = None
        self._writing: Callable[[], bool] | None = None
        numbers = itertools.count(1)  # its next() is one step under Python's lock: no two threads get the same
        self.take_number: Callable[[], int] = numbers.__next__  # the extension's own, where nodes have those too

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

    def of(self, frame: types.FrameType, remark: str = "") -> str:
        """The text of an operator that ``frame`` calls and for which Paddle asks for none."""
        lines = self._frames.format(frame) or traceback.format_stack(frame)
        lines.append(remark)
        return "".join(self._completed(lines))

    def latest(self) -> str:
        """What Paddle was last told on this thread."""
        return "".join(self._answer.lines)

    def number(self) -> int:
        """How often Paddle was told something on this thread."""
        return self._answer.count

    def _completed(self, lines: list[str]) -> list[str]:
        writing = self._writing = self._writing or writing_stacks()
        if not writing():
            for hear in self._listeners:
                try:
                    hear(lines)
                except own(Exception):  # a Layer that answers oddly: nothing of that may reach Paddle
                    continue
            lines.append(f"{ORDER}{self.take_number()}\n")
        answer = self._answer
        answer.count += 1
        answer.lines[:] = lines
        return answer.lines

    def _function(self, original: Any) -> Any:
        asking = self._asking = self._asking or Asking()

        def quick(f: types.FrameType | None, limit: int | None, caller: types.FrameType) -> list[str] | None:
            if f is not None or limit is not None or not self._on or not asking.by_paddle(caller):
                return None
            lines: list[str] = self._frames.format(caller) or original(caller, None)
            return self._completed(lines)

        def plain(f: types.FrameType | None, limit: int | None, caller: types.FrameType) -> list[str]:
            asked: list[str] = original(f if f is not None else caller, limit)
            return asked

        return shield(quick, plain)
