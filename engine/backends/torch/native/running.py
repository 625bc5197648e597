"""The calls whose hooks the extension calls, from their begin to their end. On the threads that call backward and the
engine's, under the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.native.core import Core


class Hooks(Protocol):
    """Those of one call. ``task``: the graph task that it is, None where that is not known."""

    task: int | None

    def is_mine(self, key: int) -> bool: ...


H = TypeVar("H", bound=Hooks)


class RunningCalls(Generic[H]):
    """``counter``: the extension's function that is told of one more (1) and one less (-1): its hooks do nothing while
    there is none. ``key_of``: the node that the engine runs, as a key of that call's graph."""

    def __init__(self, counter: str, key_of: Callable[[H], int | None]) -> None:
        self._counter = counter
        self._key_of = key_of
        self._calls: list[H] = []  # the latest last

    def add(self, core: Core, hooks: H) -> None:
        if not any(each is hooks for each in self._calls):
            self._calls.append(hooks)
            getattr(core.module, self._counter)(1)

    def remove(self, core: Core, hooks: H) -> bool:
        """Whether its hooks may be taken out of the nodes. Where another call runs that may share them they stay, and
        do nothing: its thread may be reading these very lists."""
        place = next((place for place, each in enumerate(self._calls) if each is hooks), None)
        if place is None:
            return False
        del self._calls[place]
        getattr(core.module, self._counter)(-1)
        return not self._calls

    def abandon(self, core: Core) -> None:
        """In a forked child, where the calls of other threads never end."""
        while self._calls:
            self._calls.pop()
            getattr(core.module, self._counter)(-1)

    def of_node(self) -> tuple[H, int] | None:
        """The latest call that has a hook at the node which the engine runs on this thread, and the node's key."""
        task = private.task_id()
        for hooks in reversed(self._calls):
            if hooks.task is None or hooks.task == task:
                key = self._key_of(hooks)
                if key is not None and hooks.is_mine(key):
                    return hooks, key
        return None
