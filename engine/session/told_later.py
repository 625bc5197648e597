"""Calls that a backend ran without a word and wrote down (``BriefRuns``): told to the observers later, many at once.

A report of a call costs its observers 10 us at its begin and its end, 40 where the caches are cold: a tenth of a step
of small operators. While all who listen are patient, a backend may take calls by itself that would be told in short,
and keep what is to be told. It is fetched by whoever tells something that comes after it, and by the writer of the
front end's events, four times a second.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from adbg.engine.backends.base import BackwardCall
from adbg.engine.outside import own
from adbg.engine.session.observers import Observer
from adbg.engine.types import BriefRuns

if TYPE_CHECKING:
    from adbg.engine.session.session import Session

# s, of a thread that wants to tell while another one tells. It takes microseconds, but on a busy machine that other one
# may not run for a while: with 0.05 calls were told in the wrong order, now and then, beside four busy processes.
_PATIENCE = 2.0
Take = Callable[[], Iterable[BriefRuns]]


class ToldLater:
    """What a sink has for backends that can do that. See ``LateSink``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._take: Take | None = None
        self._one = threading.RLock()

    @property
    def patient(self) -> bool:
        return self._session.attached and self._session.notify.patient

    @property
    def cell(self) -> memoryview | None:
        return next((cell for cell in self._session.notify.cells), None)

    @property
    def zeros(self) -> Sequence[ctypes.c_int32]:
        return self._session.notify.zeros

    @property
    def asks(self) -> Sequence[Callable[[], bool]]:
        locked = self._session.turn.locked
        return (locked, self._hurried) if self._session.notify.hurries else (locked,)

    def _hurried(self) -> bool:
        session = self._session
        try:
            for asks in session.notify.hurries:
                if asks():
                    return True
        except own(Exception):
            return True
        return False

    def keeps_nodes(self, call: BackwardCall, kinds: frozenset[str] | None) -> int:
        """See ``LateSink``: nobody but one observer wants to know of such a call, nor do breakpoints."""
        session = self._session
        keeps = session.notify.keeps
        busy = session.pausing or session.entry or session.goal is not None or session.until is not None
        if len(keeps) != 1 or busy or not self.patient:
            return 0
        if session.table.armed:
            names, _, values = session.table.passing(True)
            if values or names is None or kinds is None or any(map(names, kinds)):
                return 0
        number: int = keeps[0](call)
        return number

    def told_later(self, take: Take) -> None:
        self._take = take

    def waiting(self) -> None:
        try:
            for tell in self._session.notify.brief_waiting:
                tell(self.gather, bool(self._session.notify.keeps))
        except own(Exception) as error:
            self._session.problems.defect("calls that ran are told late", error)

    def gather(self) -> None:
        """Tell what waits. Any thread."""
        take = self._take
        if take is None:
            return
        # What one thread has taken is told before what another one takes next. Not at any price: an observer may wait
        # for the thread that waits here.
        alone = self._one.acquire(timeout=_PATIENCE)
        try:
            for runs in take():
                for tell in self._session.notify.brief_runs:
                    tell(runs)
        except own(Exception) as error:
            self._session.problems.defect("calls that ran were not reported", error)
        finally:
            if alone:
                self._one.release()


class Gatherer(Observer):
    """Has told what waits before a stop, and before the client is gone. Added before all others."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _gather(self) -> None:
        for hooks in self._session.hooks:
            hooks.gather()

    def before_stop(self) -> None:
        self._gather()

    def detach(self) -> None:
        self._gather()
