"""``threading.Event`` for threads of the program's, into which a signal handler may raise between any two instructions.

``Event`` is Python code around a lock: an exception that comes in its ``set`` right behind the lock leaves it locked,
and whoever sets or waits next hangs for good. Here each step is one call of C or one store.
"""

from __future__ import annotations

import queue
import time

from adbg.engine.outside import own


class Flag:
    """Set by any thread, waited for by any, cleared by one."""

    __slots__ = ("_on", "_wake")

    def __init__(self) -> None:
        self._on = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # what is in it says that the flag is set, too

    def is_set(self) -> bool:
        return self._on or not self._wake.empty()

    def set(self) -> None:
        """In this order: interrupted between the two it is set all the same, and those who wait are woken."""
        self._wake.put(None)
        self._on = True

    def clear(self) -> None:
        """What was put beside this is found by whoever waits next, once for nothing."""
        self._on = False
        try:
            while True:
                self._wake.get_nowait()
        except own(queue.Empty):
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, at the latest after ``timeout`` seconds."""
        limit = None if timeout is None else time.monotonic() + timeout
        while not self._on:
            left = None if limit is None else limit - time.monotonic()
            try:
                self._wake.get(timeout=left if left is None or left > 0 else 0)
            except own(queue.Empty):
                return self._on
            self.set()  # for the others that wait
        return True
