"""Children of a debugged process: when adbg comes into one that was forked, how it learns that one ends, and what
Python says of the fork."""

from __future__ import annotations

import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from adbg.engine.agent import import_watch as importwatch
from adbg.engine.outside import own, suppress
from adbg.engine.protocol.rendezvous import SessionConfig

_FORKING = ("multiprocessing.popen_fork", "multiprocessing.forkserver")
_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())
_BEHIND = -1000  # of the priorities with which multiprocessing ends a child: behind the program's own
_OWN = "adbg"  # how the names of adbg's threads begin
_NOT_OF_OURS = (
    "ignore", re.compile(r"This process \(pid=\d+\) is multi-threaded, use of fork"), DeprecationWarning, None, 0,
)  # fmt: skip


class ForkedChild:
    """A forked child runs without adbg, whose threads did not come with it, until it trains; then an agent of its own
    dials the front end, as that of a spawned child does."""

    def __init__(self, config: SessionConfig, start: Callable[[SessionConfig], object]) -> None:
        """``start`` begins an agent here."""
        self._config: SessionConfig | None = config
        self._start = start
        self._watcher: importwatch.ImportWatcher | None = None

    def wait_for_imports(self, frameworks: Iterable[str]) -> None:
        """A framework that comes in here begins it, too: nothing of it has run yet."""
        to_come = [name for name in frameworks if name not in sys.modules]
        self._watcher = importwatch.watch(dict.fromkeys(to_come, self.trains)) if to_come else None

    def trains(self) -> None:
        """On the thread that begins to; called by everything that waits for it. Never raises."""
        config, self._config = self._config, None
        watcher, self._watcher = self._watcher, None
        if config is None or not os.path.exists(config.socket):
            return  # begun already; or the front end is gone, and no debugger is wanted
        try:
            if watcher is not None:
                watcher.leave()
            _renew_locks()
            self._start(config)
        except own(Exception) as error:
            print(f"adbg: process {os.getpid()} runs undebugged: {type(error).__name__}: {error}", file=sys.stderr)


def _renew_locks() -> None:
    """Those of adbg's modules that a thread held which is not here would be waited for until the process is killed: a
    parser of the program's source, say. Those of objects went with the agent before."""
    for name, module in list(sys.modules.items()):
        if name.startswith("adbg."):
            for key, value in list(vars(module).items()):
                if type(value) in (_LOCK, _RLOCK):
                    setattr(module, key, threading.Lock() if type(value) is _LOCK else threading.RLock())


def hear_of_the_end(end: Callable[[BaseException | None, bool], None]) -> None:
    """Have ``end(error, last)`` called as a child of ``multiprocessing`` ends, by ``error`` or None; not ``last``: it
    may go on with other threads, and ``atexit`` tells of its end.

    It ends a forked child by ``os._exit``, past ``atexit``, and prints the exceptions of every child itself. Its own
    finalizers run before, while what was raised is handled; in a forked child it clears those that were there before
    it called the target (Lib/multiprocessing/process.py, ``_bootstrap``; from Python 3.13 on they run when that is
    over, and the exception of a forked child is not known).
    """
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return

    def ends() -> None:
        error, last = _raised_here(), _ends_by_exit()
        if last:  # behind this Python waits for these, and nobody is asked any more
            for thread in threading.enumerate():
                if not thread.daemon and thread is not threading.current_thread():
                    thread.join()
        if last or error is not None:
            end(error, last)

    def hear(_: object) -> None:
        # A spawned child, in which nothing is cleared, has no parent yet while it imports the program.
        if process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False):
            util.Finalize(None, ends, exitpriority=_BEHIND)

    util.register_after_fork(_heard, hear)  # called after that clearing, where the target is still to come
    hear(_heard)


def _stack() -> Iterator[tuple[types.FrameType, str]]:
    """(frame, its module), the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame, str(frame.f_globals.get("__name__"))
        frame = frame.f_back


def _raised_here() -> BaseException | None:
    """What ended the target. A child that is forked where an exception is handled has that one at hand, too."""
    error = sys.exc_info()[1]
    trace = error.__traceback__ if error is not None else None
    for frame, module in _stack():
        if module == "multiprocessing.process" and frame.f_code.co_name == "_bootstrap":
            return error if trace is not None and trace.tb_frame is frame else None
    return None


def _ends_by_exit() -> bool:
    """By ``os._exit``: it was forked."""
    return any(module in _FORKING for _, module in _stack())


class _Heard:
    """``multiprocessing`` keeps weak references to what it calls after a fork."""


_heard = _Heard()


def before_fork() -> None:
    """From Python 3.12 on ``os.fork`` counts the threads of the process, as the system has them, and warns of a fork
    that may deadlock where there are several. A script that has one thread gets no such warning without adbg, whose own
    threads hold no lock of the script's: then a filter of ours is the first one. Where the script has several itself,
    it is not there, and Python warns of the script's line as ever. The list is changed in place: what Python has shown
    once stays shown, and nobody's filters are put back over another thread's."""
    if sys.version_info < (3, 12):
        return
    with suppress(Exception):
        without_filter()
        if _threads_beside_own() <= 1:
            warnings.filters.insert(0, _NOT_OF_OURS)


def without_filter() -> None:
    """By what it is: an equal one of the program's stays."""
    filters: Any = warnings.filters  # a list
    for place, each in enumerate(list(filters)):
        if each is _NOT_OF_OURS:
            del filters[place]
            return


def _threads_beside_own() -> int:
    mine = sum(each.name.startswith(_OWN) for each in threading.enumerate())
    try:
        return len(os.listdir("/proc/self/task")) - mine
    except own(OSError):
        return threading.active_count() - mine
