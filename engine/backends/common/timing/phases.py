"""Tells when the forward, the optimizer's step and the data loader of a training step begin and end, while somebody
listens. Runs on the program's threads; switched on and off from any.

A function of the framework's has one of ours in its place meanwhile. Ours costs 0.4 us in a call that is told of and
0.2 us in one within another of the same phase, and goes by the name and the file of the one that it stands for:
compilers that look at the frames of a program leave the framework's own alone.
"""

from __future__ import annotations

import abc
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal

from adbg.engine.backends.common.observing.stand_ins import disguised
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import DISGUISED
from adbg.engine.types import SourceLine

Phase = Literal["forward", "optimizer", "data"]
#: (phase, whether it begins, the user's line where data is waited for). On the thread that is in it; never raises.
TellPhase = Callable[[str, bool, "SourceLine | None"], None]
Point = tuple[Any, str, Phase]  # class, name of its method, what that is


class _Inside(threading.local):
    """The phases that this thread is in, as they were told."""

    def __init__(self) -> None:
        self.phases: list[str] = []


class PhaseTaps(abc.ABC):
    """``line`` finds the user's line of a running frame."""

    def __init__(self, line: Callable[[types.FrameType | None], SourceLine | None]) -> None:
        self._line = line
        self._inside = _Inside()
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # (class, name, original, ours)
        self.tell: TellPhase | None = None
        self.codes: set[types.CodeType] = set()

    @abc.abstractmethod
    def points(self) -> Iterable[Point]:
        """The methods to stand in for, each of a class that has it itself."""

    def watch(self, tell: TellPhase | None) -> None:
        """From now on; None: every function of the framework's is as it was."""
        if tell is not None and self.tell is None:
            self._inside = _Inside()
            self.put_in()
        self.tell = tell
        if tell is None:
            self.take_out()

    def put_in(self) -> None:
        for owner, name, phase in self.points():
            original = vars(owner)[name]
            ours = _stand_in(self, original, phase)
            self.codes.add(ours.__code__)
            DISGUISED.add(ours.__code__)
            self._replaced.append((owner, name, original, ours))
            setattr(owner, name, ours)

    def take_out(self) -> None:
        """Where another tool wrapped ours meanwhile, ours stays below it and only passes on."""
        for owner, name, original, ours in self._replaced:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
                DISGUISED.discard(ours.__code__)
        self._replaced = []

    # ---- on the program's threads

    def unseen(self) -> bool:
        """Whether this call is none of the program's: a compiler traces it."""
        return False

    def begin(self, phase: str) -> bool:
        """Whether its end is to be told too."""
        tell = self.tell
        if tell is None or self.unseen():
            return False
        inside = self._inside.phases
        if phase in inside:
            return False
        inside.append(phase)
        tell(phase, True, self._line(sys._getframe(2)) if phase == "data" else None)
        return True

    def end(self, phase: str) -> None:
        inside, tell = self._inside.phases, self.tell
        if phase in inside:
            inside.remove(phase)
        if tell is not None:
            tell(phase, False, None)


def _stand_in(taps: PhaseTaps, original: Any, phase: str) -> Any:
    begin, end, strip, codes = taps.begin, taps.end, strip_own, taps.codes

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        told = False
        try:
            told = begin(phase)
            return original(self, *args, **kwargs)
        except BaseException as error:
            strip(error, codes)
            raise
        finally:
            if told:
                end(phase)

    return disguised(call, original)
