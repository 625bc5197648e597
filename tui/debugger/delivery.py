"""Events from the debugger to its listeners, in order, on one daemon thread ("adbg-events")."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable

from adbg.tui.debugger.events import Event
from adbg.tui.debugger.stop_view import as_error

Listener = Callable[[Event], None]


class Delivery:
    """``put`` never blocks and may be called with locks held, on any thread: no listener runs inside it."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, name="adbg-events", daemon=True)
        self._thread.start()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Later events go to ``listener`` too, after the earlier listeners; returns a function that ends that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def put(self, event: Event) -> None:
        self._queue.put(event)

    def close(self) -> None:
        """Deliver what is queued, then stop."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(2)

    def _deliver(self) -> None:
        while (event := self._queue.get()) is not None:
            for listener in list(self._listeners):
                try:
                    listener(event)
                except Exception as error:  # a defect of one listener must not silence the others
                    with contextlib.suppress(OSError, ValueError):
                        print(f"adbg: {as_error(error)}", file=sys.__stderr__)
