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
OTHER_THREAD = "backward is called on another thread than the main one"
TOO_LONG = "no backward came for longer than four usual steps"


class ForwardClock:
    """Touched by the main thread, save ``let_go``."""

    def __init__(self) -> None:
        self._timer: ForwardTimer | None = None  # that is at work
        self._alarm: threading.Timer | None = None
        self._serial = 0
        self.timed = 0  # forwards
        self.problem = ""  # why the last one that was to be timed was not

    def begin(self, timer: ForwardTimer | None, usual: float) -> None:
        """``usual``: seconds from the end of a backward to the begin of the next."""
        self.let_go()
        if timer is None:
            return
        if threading.current_thread() is not threading.main_thread():
            self.problem = OTHER_THREAD
            return
        self._serial = serial = self._serial + 1
        seconds = min(max(TIMES * usual, SHORTEST), LONGEST)
        alarm = threading.Timer(seconds, self._too_long, (serial,))
        alarm.name, alarm.daemon = "adbg-forward", True
        alarm.start()
        if timer.begin():
            self._timer, self._alarm = timer, alarm
        else:
            alarm.cancel()
            self.problem = timer.problem

    def end(self) -> ForwardTimes | None:
        """What was timed; None where nothing was."""
        timer = self._timer
        if timer is None or threading.current_thread() is not threading.main_thread():
            return None
        times = self._stop()
        if times is not None:
            self.timed += 1
            self.problem = ""
        else:
            self.problem = timer.problem
        return times

    def let_go(self) -> None:
        """Nobody wants to know. On any thread: the main one is asked to."""
        if self._timer is None:
            return
        if threading.current_thread() is threading.main_thread():
            self._stop()
        else:
            MAIN_THREAD.call(lambda frame: self._dropped(self._serial, ""))

    def abandon(self) -> None:
        """In a forked child: its alarm is not there, and the thread that forked is its main one."""
        timer, self._timer, self._alarm = self._timer, None, None
        if timer is not None:
            timer.abandon()

    @property
    def at_work(self) -> bool:
        return self._timer is not None

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
