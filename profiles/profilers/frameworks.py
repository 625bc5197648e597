"""What the profilers of the frameworks share: whether their framework is this program's, and making way for one that
the program itself starts. Neither framework can run two: torch ends the first without a word, Paddle makes none that
works."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from adbg.engine.names import FRAMEWORKS
from adbg.profiles.base import Availability


def available(framework: str) -> Availability:
    """A program that has not begun imports it before its first backward."""
    if framework in sys.modules:
        return Availability(True)
    others = [name for name in FRAMEWORKS if name in sys.modules]
    if others:
        hint = f"take {others[0]}, or nodes, cprofile, yep, py-spy"
        return Availability(False, f"this program uses {', '.join(others)}, not {framework}", hint)
    try:
        there = importlib.util.find_spec(framework) is not None
    except (ImportError, ValueError):
        there = False
    if there:
        return Availability(True, f"{framework} is not imported yet")
    return Availability(False, f"{framework} is not installed in this Python", f"pip install 'adbg[{framework}]'")


class MakeWay:
    """Around the method ``name`` of ``owner``, by which the program starts a profiler, while one of adbg's runs."""

    def __init__(self, owner: Any, name: str, before: Callable[[], None]) -> None:
        self._owner = owner
        self._name = name
        self._own = original = owner.__dict__.get(name)

        def starts(*args: Any, **kwargs: Any) -> Any:
            before()
            return original(*args, **kwargs)

        self._ours = starts
        if original is not None:  # another version has none of this name
            setattr(owner, name, starts)

    def undo(self) -> None:
        if self._own is not None and self._owner.__dict__.get(self._name) is self._ours:
            setattr(self._owner, self._name, self._own)


class OnceOnThread:
    """``then()`` on ``thread``, when that calls one of the functions (owner, name) next; not again after ``undo``."""

    def __init__(self, thread: int, places: Sequence[tuple[Any, str]], then: Callable[[], None]) -> None:
        self._thread = thread
        self._then = then
        self._ways = [MakeWay(owner, name, self._called) for owner, name in places]

    def _called(self) -> None:
        if threading.get_ident() == self._thread:
            self.undo()
            self._then()

    def undo(self) -> None:
        for way in self._ways:
            way.undo()
