"""The checks of ``symbols`` and ``census`` in a program that ran before adbg came: at the right moment.

They run operators and a small backward, and for that put aside what is of the whole process (final hooks, aids). That
may not be done while the program itself is in Paddle's engine, and its thread is in there without Python's lock. So
they wait for the moment at which a thread of the program is about to begin a backward, run on that thread (5 ms), and
others that begin one meanwhile wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType

import paddle

from adbg.engine.backends.common.under_way import in_engine
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.outside import suppress

CALLERS = ("run_backward", "run_partial_grad")  # what the Python code around the engine calls


class LateChecks:
    """``check`` is to be run once."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._lock = threading.Lock()
        self._done = False
        symbols.postpone(True)

    def try_now(self, caller: FrameType | None) -> bool:
        """Whether they are done, on a thread on which ``caller`` is about to begin a backward, and no call of the
        engine is known to run."""
        with self._lock:
            if self._done:
                return True
            if _profiling() or in_engine(CALLERS, caller):
                return False
            symbols.postpone(False)
            try:
                self._check()
                self._done = True
            finally:
                if not self._done:  # the program's own signal handler raised: another time
                    symbols.postpone(True)
            return True

    def leave(self) -> None:
        """No check begins any more, and none runs."""
        with self._lock:
            self._done = True


def _profiling() -> bool:
    """The program's profiler would show what is done here as the program's."""
    with suppress(Exception):
        return bool(paddle.profiler.utils.in_profiler_mode())
    return False
