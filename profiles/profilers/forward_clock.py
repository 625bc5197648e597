"""Which forwards the node timer has timed, operator by operator: those in front of a backward call that will be hooked.

Timing begins where the outermost backward call before it has ended, and ends where the next one begins, so what a
checkpoint computes again inside a backward is not timed. Of the main thread only: it can be asked to end what it began,
where no backward comes (an evaluation, a rollout) and the records would grow.
"""

from __future__ import annotations

import threading

from adbg.engine.backends.base import ForwardTimer, ForwardTimes
from adbg.engine.python.line_trace import MAIN_THREAD

SHORTEST, LONGEST, TIMES = 1.0, 20.0, 4.0  # seconds without a backward, and of what the last step took, until given up
NO_WAY = "this framework gives no safe way to time single operators"
OTHER_THREAD = "backward is called on another thread than the main one"
TOO_LONG = "no backward came for longer than four usual steps"


class ForwardClock:
    """Touched by the main thread, save ``let_go``."""

    def __init__(self) -> None:
        self._timer: ForwardTimer | None = None  # that is at work
        self._alarm: threading.Timer | None = None
        self._serial = 0
        self._times: ForwardTimes | None = None
        self.timed = 0  # forwards
        self.problem = ""  # why the last one that was to be timed was not

    def begin(self, timer: ForwardTimer | None, usual: float) -> None:
        """``usual``: seconds from the end of a backward to the begin of the next."""
        if not _on_main_thread():
            self.problem = OTHER_THREAD
            return
        self.let_go()
        if timer is None:
            self.problem = NO_WAY
            return
        self._serial = serial = self._serial + 1
        seconds = min(max(TIMES * usual, SHORTEST), LONGEST)
        alarm = threading.Timer(seconds, self._too_long, (serial,))
        alarm.name, alarm.daemon = "adbg-forward", True
        if timer.begin():
            self._timer, self._alarm = timer, alarm
            alarm.start()  # not before: it would find nothing to end
        else:
            self.problem = timer.problem

    def end(self) -> None:
        """The forward is over: an outermost backward begins."""
        timer = self._timer
        if timer is None or not _on_main_thread():
            return
        self._times = self._stop()
        if self._times is not None:
            self.timed += 1
            self.problem = ""
        else:
            self.problem = timer.problem

    @property
    def times(self) -> ForwardTimes | None:
        """Of the forward in front of the backward that runs on this thread; None where it was not timed."""
        return self._times if _on_main_thread() else None

    def backward_ended(self) -> None:
        if _on_main_thread():
            self._times = None

    def let_go(self) -> None:
        """Nobody wants to know. On any thread: the main one is asked to."""
        self._times = None
        if self._timer is None:
            return
        serial = self._serial
        if _on_main_thread():
            self._stop()
        else:
            MAIN_THREAD.call(lambda frame: self._dropped(serial, ""))

    def abandon(self) -> None:
        """In a forked child: its alarm is not there, and the thread that forked is its main one."""
        timer, self._timer, self._alarm = self._timer, None, None
        if timer is not None:
            timer.abandon()

    def _stop(self) -> ForwardTimes | None:
        timer, alarm, self._timer, self._alarm = self._timer, self._alarm, None, None
        if alarm is not None:
            alarm.cancel()
        return timer.end() if timer is not None else None

    def _too_long(self, serial: int) -> None:
        """On the alarm's thread."""
        MAIN_THREAD.call(lambda frame: self._dropped(serial, TOO_LONG))

    def _dropped(self, serial: int, why: str) -> None:
        if serial == self._serial and self._timer is not None:
            self._stop()
            self.problem = why or self.problem


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
