"""Calls of Paddle's engine that are under way, by thread. Touched by that thread alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from adbg.engine.backends.paddle.call import PaddleCall
from adbg.engine.backends.paddle.native.census import Survey
from adbg.engine.backends.paddle.native.watch import NativeWatch


class Open:
    """One call of the engine on this thread's stack. ``call`` is None until it is needed."""

    __slots__ = (
        "args", "begun", "brief", "call", "custom", "entry", "facts", "frame", "kwargs", "number", "partial", "passing",
        "returned", "survey", "watch",
    )  # fmt: skip

    def __init__(
        self,
        entry: FrameType | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        partial: bool,
        number: int,
        custom: str,
    ) -> None:
        self.entry: FrameType | None = entry
        self.args = args
        self.kwargs = kwargs
        self.partial = partial
        self.number = number
        self.custom = custom  # the PyLayer around it, as Paddle prints it
        self.call: PaddleCall | None = None
        self.passing = False
        self.begun = False  # its begin was reported
        self.returned: tuple[str, Any] | None = None  # what the last PyLayer in it gave back
        self.frame: Any = None
        self.survey: Survey | None = None
        #: Nodes, names of roots, file and line, where the extension began it and it is told in short.
        self.facts: tuple[int, tuple[str, ...], str, int] | None = None
        self.watch: NativeWatch | None = None  # while the extension alone looks at its gradients
        self.brief = 0  # perf_counter_ns of its begin, where it was reported in short


class Thread:
    """What runs on a thread, innermost last."""

    __slots__ = ("abort", "answer", "customs", "open", "origin", "passing", "quick", "reported")

    def __init__(self) -> None:
        self.open: list[Open] = []
        self.quick: Open | None = None  # the one of them that the extension began
        self.customs: list[str] = []
        self.passing = 0
        self.abort: BaseException | None = None
        self.origin: BaseException | None = None
        self.reported = False
        self.answer: list[Any] = []

    def clear(self) -> None:
        """An outermost call begins."""
        self.origin, self.abort, self.reported = None, None, False
        self.customs.clear()


class Threads(threading.local):
    """One look-up a call: each attribute of a local costs as much as three of an object."""

    def __init__(self) -> None:
        self.mine = Thread()


def given(opened: Open, place: int, *names: str) -> Sequence[Any]:
    value = (
        opened.args[place]
        if len(opened.args) > place
        else next((opened.kwargs[name] for name in names if name in opened.kwargs), ())
    )
    return value if isinstance(value, (tuple, list)) else (value,)


def flag(opened: Open, place: int, name: str) -> Any:
    return opened.args[place] if len(opened.args) > place else opened.kwargs.get(name, False)
