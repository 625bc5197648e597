"""Nodes told in batches: what the backend wrote down of a call without a hook in Python, for the observers that
override ``node_events``, and for the figures of nodes that no breakpoint took.

Runs under the turn. Where a backend cannot write down (no extension, a GPU), nothing is told here, and an observer that
wants every node plans for hooks, as ever: ``Running.collected`` tells it which of the two holds.
"""

from __future__ import annotations

from collections.abc import Callable

from adbg.engine.backends.base import HookPlan
from adbg.engine.node_batch import NodeBatch
from adbg.engine.outside import own
from adbg.engine.session.observers import Notify, Observer
from adbg.engine.session.running_call import Running
from adbg.engine.session.stop_point import Ran


class Collector(Observer):
    """Added before all others: it decides before they are asked for a plan."""

    def __init__(self, notify: Callable[[], Notify]) -> None:
        """Args: notify: whom to tell, as it is now."""
        self._notify = notify
        self._calls: list[Running] = []  # that are written down

    def plan(self, running: Running) -> HookPlan | None:
        if running.call.depth == 0:  # what this thread began earlier is over, also where its end was not told
            self._calls = [each for each in self._calls if each.thread != running.thread]
        if self._notify().node_events and running not in self._calls and running.call.collect():
            running.collected = True
            self._calls.append(running)
        return None

    def before_stop(self) -> None:
        for running in self._calls:
            running.state.looked_at = True
            self._tell(running, keep=True)

    def release(self, running: Running, error: BaseException | None) -> None:
        if running in self._calls:
            self._calls.remove(running)
            self._tell(running, keep=False)

    def detach(self) -> None:
        self._calls.clear()

    def abandon(self) -> None:
        self._calls.clear()

    def _tell(self, running: Running, keep: bool) -> None:
        """``keep``: the figures too, for those who look at the call."""
        try:
            batch = running.call.collected()
        except own(Exception):  # it was released meanwhile
            return
        if batch is None or not (len(batch) or batch.lost):
            return
        if keep:
            _note(running, batch)
        for tell in self._notify().node_events:
            tell(running, batch)


def _note(running: Running, batch: NodeBatch) -> None:
    """Of nodes that were hooked as well, more is known than this."""
    ran = running.state.ran
    for event in batch:
        if event.key not in ran and not event.failed:
            ran[event.key] = Ran(event.us, event.norm, event.nonfinite)
