"""Runs something while chosen source lines run (callbacks on the thread that runs the lines).

Python 3.10 and 3.11 offer no event per line for one function alone, so this uses ``sys.settrace``: a thread's global
trace function sees every new Python frame and declines all but those whose code has one of the lines; only these are
traced line by line. The thread is slower while a region is set, and as before once there is none. A tracer that
is there already (a Python debugger, coverage) is left alone, and the region is refused on that thread.
"""

from __future__ import annotations

import collections
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from adbg.engine.outside import own
from adbg.engine.places import Lines
from adbg.engine.python.line_passes import Passes, Turns

_WAKING = signal.SIGURG  # ignored unless a program asks for it
_MOST_CODES = 50_000  # code objects whose verdict is kept: a program may compile some at every step


class MainThread:
    """Has the main thread call something between two instructions. The interpreter's queue of calls has a plain
    address: one function of C for all calls, which is never freed."""

    def __init__(self) -> None:
        self._waiting: collections.deque[Callable[[FrameType], None]] = collections.deque()
        self._function: Any = None

    def call(self, what: Callable[[FrameType], None]) -> bool:
        """``what(frame)``, once the main thread runs Python; False where the interpreter's queue is full. It must not
        raise."""
        if self._function is None:
            self._function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._called)
        self._waiting.append(what)
        if ctypes.pythonapi.Py_AddPendingCall(self._function, None):
            self._waiting.remove(what)
            return False
        return True

    def _called(self, _argument: Any) -> int:
        if self._waiting:
            self._waiting.popleft()(sys._getframe(1))
        return 0

    def wake(self) -> None:
        """Where it waits in C for another thread (``join``, a queue, a lock) it runs what it was asked to call at once:
        such a wait looks for that at each signal. By one that does nothing, if the program does nothing with it."""
        libc = ctypes.CDLL(None)
        libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
        before = libc.signal(_WAKING, ctypes.cast(libc.abs, ctypes.c_void_p))
        if not before:
            libc.siginterrupt(_WAKING, 1)  # else the kernel would go on with the wait
            signal.pthread_kill(threading.main_thread().ident or 0, _WAKING)
            time.sleep(0.01)  # it comes as soon as that thread runs
            libc.siginterrupt(_WAKING, 0)
        libc.signal(_WAKING, before)


MAIN_THREAD = MainThread()  # of this process


class LineRegions:
    """The set of regions. ``add`` and ``clear`` from any thread; they take effect on the main thread at its next Python
    instruction, on the calling thread at once, and on threads that start later."""

    def __init__(self, problem: Callable[[str], None] = lambda text: None) -> None:
        self._problem = problem
        self._regions: list[Passes | Turns] = []
        # Whether a code object holds a line of a region, by its address: equal code of two files compares equal.
        self._known: dict[int, tuple[CodeType, bool]] = {}
        self._queued = False
        self._lock = threading.Lock()

    @property
    def empty(self) -> bool:
        return not self._regions

    def add(self, lines: Lines, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._add(Passes(lines, enter, leave))

    def add_turns(self, lines: Lines, begins: Callable[[], None]) -> None:
        """``begins`` whenever the statement at the first of ``lines`` is begun."""
        self._add(Turns(lines, begins))

    def _add(self, region: Passes | Turns) -> None:
        with self._lock:
            self._regions = [*self._regions, region]
            self._known = {}
        self._everywhere()

    def clear(self) -> None:
        """Leave what is entered, trace nothing any more."""
        with self._lock:
            regions, self._regions, self._known = self._regions, [], {}
        for region in regions:
            region.clear()
        if regions:
            self._everywhere()

    def abandon(self) -> None:
        """In a forked child, on the one thread there is: nothing is watched, no lock is waited for."""
        self._lock = threading.Lock()
        self._regions, self._known, self._queued = [], {}, False
        if getattr(threading, "_trace_hook", None) == self._trace:
            threading.settrace(None)
        if sys.gettrace() == self._trace:
            sys.settrace(None)

    # ---- putting the trace function in and out

    def _everywhere(self) -> None:
        if self._regions:
            threading.settrace(self._trace)
        elif getattr(threading, "_trace_hook", None) == self._trace:
            threading.settrace(None)  # None is what it takes back
        if threading.current_thread() is threading.main_thread():
            self._here(sys._getframe(1))
        else:
            self._on_main_thread()

    def _on_main_thread(self) -> None:
        """Have the interpreter run ``_here`` there between two instructions: once, however often it is asked for while
        that thread is busy."""
        if self._queued:
            return
        self._queued = True
        if not MAIN_THREAD.call(self._called):
            self._queued = False
            self._problem("the lines are not watched: the interpreter's queue of calls is full")

    def _called(self, frame: FrameType) -> None:
        self._queued = False
        try:
            self._here(frame)
        except own(Exception) as error:  # must not surface in whatever the thread does
            self._problem(f"the lines are not watched: {type(error).__name__}: {error}")

    def _here(self, frame: FrameType | None) -> None:
        """On this thread, in the frames that run already too."""
        current = sys.gettrace()
        if not self._regions:
            if current == self._trace:
                sys.settrace(None)
            return
        if current not in (None, self._trace):
            self._problem("the lines are not watched: another tracer (a debugger, coverage) is active on this thread")
            return
        found = []
        while frame is not None:
            if frame.f_trace is None and self._wants(frame.f_code):
                frame.f_trace = self._line
                found.append(frame)
            frame = frame.f_back
        for frame in reversed(found):  # the outermost first: the others are within it
            self._at(frame, frame.f_lineno)
        sys.settrace(self._trace)

    # ---- on the traced thread

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._regions:  # a thread that started while there were some: it goes at full speed again
            sys.settrace(None)
            return None
        return self._line if self._wants(frame.f_code) else None

    def _wants(self, code: CodeType) -> bool:
        verdicts = self._known  # first: what an older set of regions finds goes into a dict that is no longer read
        known = verdicts.get(id(code))
        if known is None:
            lines = [place for _, _, place in code.co_lines() if place]
            wanted = any(
                region.lines.in_file(code.co_filename)
                and any(region.lines.first <= line <= region.lines.last for line in lines)
                for region in self._regions
            )
            if len(verdicts) >= _MOST_CODES:
                verdicts.clear()
            known = verdicts[id(code)] = (code, wanted)  # held, so that no other gets its address
        return known[1]

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._at(frame, frame.f_lineno)
        elif event == "return":  # an exception that leaves the frame comes as one too
            self._at(frame, 0)
        return self._line

    def _at(self, frame: FrameType, line: int) -> None:
        for region in self._regions:
            region.at(frame, line)
