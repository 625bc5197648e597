"""The timer by which libprofiler samples, where the process forks and where it becomes another program.

A child has the locks of the library as they were at the fork: one that another thread's handler of SIGPROF held is held
there for good, and the child hangs in the library's own clean-up. The timer outlives ``exec``, the handler does not:
the first signal kills the new program. So the timer is off, and no handler runs, while the process does either.
"""

from __future__ import annotations

import functools
import os
import posix
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

QUIET = 0.5  # seconds: a handler takes some microseconds, and may be set aside by a busy machine meanwhile
LOOK = 0.001  # between two looks
_BIT = 1 << (signal.SIGPROF - 1)
_EXECS = "execv", "execve"  # all others of ``os`` call one of these


class Sampling:
    """Of this process. ``lock`` is held around each call of the library: it has a lock of its own in each."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a handler of the program's may fork in the middle of what holds it
        self._save: Callable[[], None] | None = None  # while it samples
        self._held: dict[int, list[tuple[float, float]]] = {}  # by thread: a handler may fork in the middle of a fork
        self._deaf: set[int] = set()  # threads that block the signal for good
        self._registered = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def begin(self, save: Callable[[], None]) -> None:
        """``save`` is called before the process becomes another program."""
        self._save = save
        if not self._registered:
            self._registered = True  # Python takes none of these back: they do nothing while nothing samples
            os.register_at_fork(before=self.hold, after_in_parent=self.go_on, after_in_child=self._in_child)
        for owner in (os, posix):
            for name in _EXECS:
                original = getattr(owner, name)
                ours = self._exec(original)
                setattr(owner, name, ours)
                self._replaced.append((owner, name, original, ours))

    def end(self) -> None:
        self._save = None
        replaced, self._replaced = self._replaced, []
        for owner, name, original, ours in replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, original)

    def hold(self) -> None:
        """Nothing samples until ``go_on``, on this thread. That comes also where an exception comes in here: it finds
        what there is to put back."""
        held = self._held.setdefault(threading.get_ident(), [])
        held.append((0.0, 0.0))
        self.lock.acquire()
        if self._save is not None:
            held[-1] = signal.setitimer(signal.ITIMER_PROF, 0)
            self._quiet()

    def go_on(self) -> None:
        held = self._held.get(threading.get_ident())
        if not held:
            return
        timer = held.pop()
        if timer[1] > 0:
            signal.setitimer(signal.ITIMER_PROF, timer[0] or timer[1], timer[1])
        if self.lock._is_owned():  # type: ignore[attr-defined]
            self.lock.release()

    def _in_child(self) -> None:
        self.lock, self._held = threading.RLock(), {}
        self.end()

    def _exec(self, original: Any) -> Any:
        @functools.wraps(original)
        def execs(*args: Any, **kwargs: Any) -> Any:
            save = self._save
            if save is None:  # the program has kept this function
                return original(*args, **kwargs)
            with self.lock:
                save()  # which sets the timer again
                try:
                    self.hold()
                    return original(*args, **kwargs)
                finally:  # there is no such program: this one goes on
                    self.go_on()

        return execs

    def _quiet(self) -> None:
        """Twice in a row no thread is in a handler, nor will be: one was neither waiting nor running for an instant."""
        limit, looks = time.monotonic() + QUIET, 0
        while looks < 2:
            busy = set(_at_it()) - self._deaf
            looks = 0 if busy else looks + 1
            if busy and time.monotonic() > limit:
                self._deaf |= busy - {0}
                return
            if looks < 2:
                time.sleep(LOOK)


def _at_it() -> Iterator[int]:
    """Threads that run a handler of SIGPROF (it is blocked meanwhile), or block it for good; 0: one waits for some."""
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/status", "rb") as file:
                text = file.read()
        except OSError:  # it has ended
            continue
        if _mask(text, b"SigBlk:") & _BIT:
            yield int(thread)
        if (_mask(text, b"SigPnd:") | _mask(text, b"ShdPnd:")) & _BIT:
            yield 0


def _mask(text: bytes, name: bytes) -> int:
    place = text.find(name)
    return int(text[place + len(name) :].split(None, 1)[0], 16) if place >= 0 else 0


SAMPLING = Sampling()
