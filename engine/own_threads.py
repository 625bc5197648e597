"""Threads of adbg's that may hold the last reference to an object of a framework's, or be inside one's functions.

Python up to 3.13 ends a thread that asks for the GIL of an interpreter which is ending by ``pthread_exit``. Where that
happens below a destructor of C++ (torch lets go of the GIL around the end of a tensor and takes it again in one), the
unwinding ends in ``std::terminate``: the program, done with all it had to do, ends by SIGABRT. Measured with torch
2.13: 3 of 160 runs on a busy machine that left a stop by ``disconnect`` and ended at once. So the program's end waits
for these threads, but not for ever. (Paddle 3.3.1 keeps the GIL there.)
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from adbg.engine.outside import suppress

_ends: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()


def begin(
    target: Callable[..., object], name: str, args: tuple[Any, ...] = (), end: Callable[[], None] = lambda: None
) -> threading.Thread:
    """A daemon thread that runs ``target(*args)``. ``end`` asks it, from another thread, to be over soon; it holds
    nothing that holds the thread, or neither would ever go."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    register(thread, end)
    thread.start()
    return thread


def register(thread: threading.Thread, end: Callable[[], None] = lambda: None) -> None:
    """The end waits for this one, too."""
    _ends[thread] = end


def is_own() -> bool:
    """Whether the calling thread is one of these. Python's collector runs finalizers of the program's on them, too: a
    backward in one that waits for a stopped thread would keep the news of that stop from the front end. 1 us."""
    ident = threading.get_ident()
    # The system gives the number of a thread that has ended to the next one, which is the program's.
    return any(each.ident == ident and each.is_alive() for each in list(_ends))


def end_all(within: float) -> None:
    """Ask all to end, and wait for that: ``within`` seconds at most. Not for the calling thread."""
    deadline = time.monotonic() + within
    running = [each for each in list(_ends.items()) if each[0].is_alive() and each[0] is not threading.current_thread()]
    for _, end in running:
        with suppress(Exception):
            end()
    for thread, _ in running:
        thread.join(max(deadline - time.monotonic(), 0.0))
