"""Children of a debugged process: when adbg comes into one that was forked, and how it learns that one ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from adbg.engine.agent import import_watch as importwatch
from adbg.engine.outside import own
from adbg.engine.protocol.rendezvous import SessionConfig

_BEHIND = -1000  # of the priorities with which multiprocessing ends a child: behind the program's own


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
            self._start(config)
        except own(Exception) as error:
            print(f"adbg: process {os.getpid()} runs undebugged: {type(error).__name__}: {error}", file=sys.stderr)


def hear_of_the_end(end: Callable[[BaseException | None], None]) -> None:
    """Have ``end`` called as a child of ``multiprocessing`` ends, with the exception that ends it, or None.

    It ends a forked child by ``os._exit``, past ``atexit``, and prints the exceptions of every child itself. Its own
    finalizers run before, while what was raised is handled; in a forked child it clears those that were there before
    it called the target (Lib/multiprocessing/process.py, ``_bootstrap``).
    """
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return

    def ends() -> None:
        end(sys.exc_info()[1])

    def hear(_: object) -> None:
        # A spawned child, in which nothing is cleared, has no parent yet while it imports the program.
        if process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False):
            util.Finalize(None, ends, exitpriority=_BEHIND)

    util.register_after_fork(_heard, hear)  # called behind that clearing, where the target is still to come
    hear(_heard)


class _Heard:
    """``multiprocessing`` keeps weak references to what it calls after a fork."""


_heard = _Heard()
