"""Children of a debugged process: when adbg comes into one that was forked, how it learns that one ends, and what
Python says of the fork."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from adbg.engine.agent import import_watch as importwatch
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import own
from adbg.engine.protocol.rendezvous import SessionConfig

_FORKING = ("multiprocessing.popen_fork", "multiprocessing.forkserver")
_LOCK, _RLOCK = type(threading.Lock()), type(threading.RLock())
_BEHIND = -1000  # of the priorities with which multiprocessing ends a child: behind the program's own
_OWN = "adbg"  # how the names of adbg's threads begin
_TEXT = "This process (pid={}) is multi-threaded, use of {}() may lead to deadlocks in the child."  # Python's own
_NAMES = ("fork", "forkpty")

_replaced: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {}  # by name: the one before, and ours


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


def put_in_fork() -> None:
    """Have ``os.fork`` count threads without adbg's. From Python 3.12 on it counts those of the process, as the system
    has them, and warns of a fork that may deadlock where there are several: a script that has one thread gets no such
    warning without adbg (with ``-W error``: no exception). adbg's own hold no lock of the script's, and a forked child
    is told to leave them alone. Nothing is done before Python 3.12, or a second time."""
    if sys.version_info < (3, 12):
        return
    for name in _NAMES:
        plain = getattr(os, name, None)
        if plain is not None and name not in _replaced:
            ours = _without_own(plain)
            setattr(os, name, ours)
            _replaced[name] = plain, ours


def take_out_fork() -> None:
    """What somebody put in front of ours stays, and ours only passes on."""
    for name, (plain, ours) in list(_replaced.items()):
        if getattr(os, name, None) is ours:
            setattr(os, name, plain)
            del _replaced[name]


def _without_own(plain: Callable[..., object]) -> Callable[..., object]:
    """Python warns of the line that calls it, which is one of ours here: the script's line is warned of in its place,
    where the script has several threads itself."""

    @functools.wraps(plain)
    def fork(*args: object, **kwargs: object) -> object:
        try:
            threads = _threads_beside_own()
            if _is_ignored():
                made = plain(*args, **kwargs)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    made = plain(*args, **kwargs)
            if threads > 1 and (made[0] if isinstance(made, tuple) else made) != 0:
                warnings.warn(_TEXT.format(os.getpid(), plain.__name__), DeprecationWarning, stacklevel=2)
            return made
        except BaseException as error:
            strip_own(error)
            raise

    return fork


def _is_ignored() -> bool:
    """Whether the filters, as they are, ignore such a warning of a line of this module: then they need no change, after
    which Python shows again what it had shown once."""
    for action, text, category, module, line in warnings.filters:
        if issubclass(DeprecationWarning, category) and not line and not text:
            if module is None or _matches(module):
                return action == "ignore"
        elif issubclass(DeprecationWarning, category):
            return False
    return False


def _matches(module: object) -> bool:
    found = module.match(__name__) if isinstance(module, re.Pattern) else module == __name__
    return bool(found)


def _threads_beside_own() -> int:
    mine = sum(each.name.startswith(_OWN) for each in threading.enumerate())
    try:
        return len(os.listdir("/proc/self/task")) - mine
    except own(OSError):
        return threading.active_count() - mine
