"""Backward calls that a backend passes over without a word, and tells of in one go.

To be told of each call takes a tenth of a millisecond of Python in steps of 3 ms, where its code is not in the
processor's caches (12 us where it is). So while everybody who listens agrees, a backend may pass over calls like one
that was of no interest, until the next event, stop or change, or for the 50 ms after which the front end hears of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adbg.engine.backends.base import Alone
from adbg.engine.outside import own
from adbg.engine.types import BriefRun

if TYPE_CHECKING:
    from adbg.engine.session.session import Session

LONG = 20_000.0  # us: calls that take as long are told of one by one


class PassedAlone:
    """Whether calls may be passed over so now, and what ran meanwhile. Any thread."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def allowed(self, us: float) -> Alone | None:
        """See ``HookSink.alone``."""
        session = self._session
        if us > LONG or not session.attached or session.turn.taken or session.parked is not None:
            return None
        heard = session.notify.brief_heard
        if not all(observer.brief_later() for observer in heard):
            return None
        notes = [observer.brief_notes for observer in heard if observer.brief_notes is not None]
        return Alone(notes[0] if notes else None) if len(notes) < 2 else None

    def tell(self, runs: Sequence[BriefRun]) -> None:
        """See ``HookSink.brief_ran``."""
        session = self._session
        try:
            if session.attached:
                for run in runs:
                    for tell in session.notify.brief_ran:
                        tell(run)
        except own(Exception) as problem:
            session.problems.defect("the end of a backward was not reported", problem)

    def settle(self) -> None:
        """All that ran was told of, and the next call is reported by itself."""
        for backend in list(self._session.backends):
            backend.tell_brief(last=True)
