"""Tells that a process begins to train, which costs nothing until it does.

A program forks for many reasons: a DataLoader has its workers, a pool its own, and no debugger is wanted in these. A
process that makes an optimizer, joins a process group or calls backward is one that trains.
"""

from __future__ import annotations

import _thread
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, cast

from adbg.engine.outside import DISGUISED


class TrainingStart:
    """Stands in for what only a process calls that trains, until the first of these calls."""

    def __init__(self, places: Iterable[tuple[Any, str]], tell: Callable[[], None]) -> None:
        """
        Args:
            places: (owner, name) of each function: of a module, or a method of a class.
            tell: called once, on the thread that begins, before what it called. It must not raise.
        """
        self._tell = tell
        self._once = _thread.allocate_lock()  # for ever taken by the first
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # (owner, name, original, ours)
        for owner, name in places:
            original = getattr(owner, name, None)
            if callable(original):
                ours = self._stand_in(owner, name, original)
                setattr(owner, name, ours)
                self._replaced.append((owner, name, original, ours))

    def _stand_in(self, owner: Any, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def begins(*args: Any, **kwargs: Any) -> Any:
            if self._once.acquire(False):
                self._leave()
                uncovered = getattr(owner, name, None) is original  # else another tool stands in front, and called this
                self._tell()
                if uncovered:  # what the debugger put there as it came sees this call, too
                    return getattr(owner, name, original)(*args, **kwargs)
            return original(*args, **kwargs)

        DISGUISED.add(cast(types.FunctionType, begins).__code__)
        return begins

    def _leave(self) -> None:
        """What another tool wrapped meanwhile stays below it and only passes on."""
        for owner, name, original, ours in self._replaced:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
        self._replaced = []
