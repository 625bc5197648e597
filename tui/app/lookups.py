"""Questions to the program on behalf of the panels: one worker thread, the newest question of a kind wins.

``ask`` is called on the UI thread and never waits; the answer comes back as a ``Read`` message to the app. A question
that is still waiting is replaced by the next of its kind (moving through the graph asks for the node that was reached,
not for all on the way). Commands have a thread of their own: one may take minutes, and panels go on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.tui.app.messages import Read
from adbg.tui.debugger.stop_view import as_error

Post = Callable[[Read], object]
Then = Callable[[Read], None]


class Lookups:
    """``post`` must be safe to call from a thread (``App.post_message`` is)."""

    def __init__(self, post: Post, name: str = "adbg-lookups") -> None:
        self._post = post
        self._jobs: OrderedDict[str, tuple[Any, Callable[[], Any], Then]] = OrderedDict()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def ask(self, kind: str, key: Any, question: Callable[[], Any], then: Then) -> None:
        """Have ``question`` called; a ``Read`` for ``then`` follows unless a newer one of the kind comes first."""
        with self._changed:
            self._jobs[kind] = (key, question, then)
            self._changed.notify()

    def drop(self) -> None:
        """Forget the questions that wait (the program went on)."""
        with self._changed:
            self._jobs.clear()

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is asked."""
        with self._changed:
            return not self._jobs and not self._busy

    def close(self) -> None:
        """The thread ends after the question it is at."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                _, (key, question, then) = self._jobs.popitem(last=False)
                self._busy = True
            result: Any = None
            error: AdbgError | None = None
            try:
                result = question()
            except Exception as problem:
                error = as_error(problem)
            self._post(Read(key, result, error, then))
