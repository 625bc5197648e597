"""The course of a measurement: it begins, is saved meanwhile, and ends; each step by one thread at a time.

A tool takes seconds to start, to stop and to write. So nobody waits for the step at hand: a thread that comes meanwhile
leaves word that the measurement is to end, and whoever is at a step ends it behind that. The session's lock of arming
is taken only when a step's work is done, by a thread that holds nothing that another one waits for.

An exception of the program's may come between any two instructions of a step. What was done of it stays done, and the
next visit (a backward call, another request, the program's end) goes on behind that: ``resume``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.outside import own, suppress
from adbg.engine.protocol import messages as p
from adbg.engine.python.line_trace import LineRegions
from adbg.engine.session.observers import Observer
from adbg.engine.session.session import Session
from adbg.profiles.base import META, Profiler
from adbg.profiles.folders import reason, write_meta
from adbg.profiles.measurement import LIVE, Measurement, told
from adbg.profiles.placing import Placing
from adbg.profiles.region import Region

HELD = 30.0  # seconds that a region's begin waits for a profiler beside the program
INTERRUPTED = "an exception of the program's own (a signal, a Ctrl-C) came while the profiler began: ask for it again"


class Course:
    """``now``: the measurement of this process, ``last``: the one before. ``tick`` is told of backward calls while
    there is one."""

    def __init__(self, session: Session, send: Callable[[Any], None], tick: Callable[[bool], None]) -> None:
        self._session = session
        self._send = send
        self._tick = tick
        self.now: Measurement | None = None
        self.last: Measurement | None = None
        self._leaving: dict[Measurement, None] = {}  # those that are over, and still hear of the program
        self.lines = LineRegions(session.problems.problem)

    # ------------------------------------------------------------ steps

    def _step(self, now: Measurement, does: Callable[[Measurement], None] | None = None) -> None:
        """On this thread, unless another one is at a step; behind it the end, if one was asked for meanwhile."""
        while not now.gone:
            hold = now.turn.take()
            if hold is None:
                return
            try:
                if does is not None and not now.asked_to_end:
                    does(now)
                if now.asked_to_end and not now.gone:
                    self._end(now)
            finally:
                hold.over = True
            # asked since the look above, by a thread that found the turn taken and went on
            if not now.asked_to_end:
                return

    def resume(self) -> None:
        """An end that was asked for, and that an exception came into, goes on here. On any visit of the program's."""
        for now in (*self._leaving, self.now):
            if now is None or now.gone or now.turn.taken:
                continue
            if now.state == "running" and not now.started:
                now.asked_to_end = now.asked_to_end or (INTERRUPTED,)
            if now.asked_to_end and (now.state != "running" or now.may_end_here):
                self._step(now)

    @staticmethod
    def measurement(profiler: Profiler, region: Region, folder: str, placing: Placing) -> Measurement:
        return Measurement(profiler, region, folder, placing, Course._step.__code__)

    def ready(self) -> None:
        """Another may be asked for. Under the session's lock of arming.

        Raises:
            CommandError: not before this one is over.
        """
        self.resume()
        now = self.now
        if now is None:
            if not self.lines.empty:
                self.lines.clear()
        elif now.closing:
            raise CommandError(f"{now.profiler.name} writes what it measured", "its end is told: try again then")
        else:
            raise CommandError(f"{now.profiler.name} is at work already: {now.region}", "`profile stop` ends it")

    def begin(self, asked: Measurement | None = None) -> None:
        """The region begins here; ``asked``: of this one alone."""
        now = self.now
        if now is not None and now.state == "waiting" and asked in (None, now):
            self._step(now, self._begin)

    def _begin(self, now: Measurement) -> None:
        if now.state != "waiting":
            return
        try:
            now.placing.apply()
            if now.profiler.where == "outside":
                self._hold(now)
            if now.asked_to_end:
                return
            now.begins()
            self._write_meta(now, now.state, now.why)  # a killed process leaves this one
            self.tell(now)
            now.start()
        except own(Exception) as error:
            self._failed(now, error)  # which asks for its end: that comes behind this
            return
        if isinstance(now.profiler, Observer):
            self._session.rearm()
        if now.profiler.phase is not None:
            self._session.change(self.watch_all)

    def _hold(self, now: Measurement) -> None:
        """Until the front end has the profiler running beside this process."""
        now.state = "ready"
        self.tell(now)
        if not now.go.wait(HELD):
            now.warn(f"{now.profiler.name} did not begin in time: the begin of the region is missing")

    def save(self, now: Measurement) -> None:
        if now.save_is_due():
            self._step(now, self._save)

    def _save(self, now: Measurement) -> None:
        try:
            if now.running:
                now.save()
        except own(Exception) as error:
            self._session.problems.problem(f"the profile cannot be saved meanwhile: {type(error).__name__}: {error}")

    def finish(self, now: Measurement, why: str) -> None:
        """Stop, write, tell; by the thread that is at another step, where one is. ``why``: what ended it early."""
        now.asked_to_end = now.asked_to_end or (why,)
        now.go.set()
        self._step(now)

    def drop(self, now: Measurement) -> None:
        """As if it had not been asked for."""
        now.dropped = True
        self.finish(now, "")

    def _end(self, now: Measurement) -> None:
        now.ends_now = True
        if now.state in LIVE:
            self._close(now)
        self._over(now)

    def _close(self, now: Measurement) -> None:
        ran, why = now.started, now.asked_to_end[0]
        if now.state == "running" and not ran:
            now.profiler.undo()
        elif not ran:
            why = why or "stopped before the region began"
        elif now.ending:
            now.why = ""  # that it will end soon
        try:
            if ran:
                now.stop()
                now.note_displaced()
                why = why or now.nothing()
            now.put_back()
            if not now.dropped:
                state, why = ("partial", why) if why else ("done", now.why)
                self._write_meta(now, state, why)
                now.why = why
                now.state = state
        except own(Exception) as error:
            if not now.dropped:
                self._failed(now, error)
        if now.dropped:
            now.put_back()
            shutil.rmtree(now.folder, ignore_errors=True)
            now.state = "idle"

    def _failed(self, now: Measurement, error: BaseException) -> None:
        why = reason(error, now.folder)
        now.asked_to_end = now.asked_to_end or (why,)
        now.ends_now = True
        if now.state == "running":  # what it has begun of its tool's work goes on else, for good
            with suppress(Exception):
                now.profiler.undo()
        now.put_back()
        with suppress(OSError):
            if set(os.listdir(now.folder)) <= {META}:  # nothing was measured
                shutil.rmtree(now.folder)
            else:
                self._write_meta(now, "failed", why)
        now.why = why
        now.state = "failed"

    def _over(self, now: Measurement) -> None:
        """Its files are written."""
        self._leaving[now] = None
        if self.now is now:
            self.last = now if not now.dropped else None
            self.now = None
        if not now.dropped and not now.told:
            self.tell(now)
            now.told = True
        now.over.set()  # first: who waits for it may hold the lock of arming
        self._session.change(lambda: self._let_go(now))
        self._leaving.pop(now, None)
        now.gone = True

    def _let_go(self, now: Measurement) -> None:
        """Of what reports to it; another one may have been asked for already."""
        if isinstance(now.profiler, Observer):
            self._session.unobserve(now.profiler)
        self.watch_all()
        if self.now is None and not self.lines.empty:
            self.lines.clear()

    # ------------------------------------------------------------ what is told, and what tells

    def tell(self, now: Measurement) -> None:
        self._send(p.ProfileChanged(told(now, self._session.known_rank())))

    def _write_meta(self, now: Measurement, state: str, why: str) -> None:
        frameworks, rank = [backend.name for backend in self._session.backends], self._session.known_rank()
        write_meta(now.folder, {**now.meta(frameworks, state, why), "rank": rank})

    def watch_all(self) -> None:
        """Under the session's lock of arming: who looks last sees what is so."""
        for backend in self._session.backends:
            self.watch(backend)

    def watch(self, backend: Backend) -> None:
        """Arming would walk every graph: a tenth of a small step's time."""
        now = self.now
        with suppress(Unsupported):
            backend.watch_iterations(self._tick if now is not None else None)
        with suppress(Unsupported):
            backend.watch_phases(now.profiler.phase if now is not None and now.running else None)

    def abandon(self) -> None:
        """In a forked child: a step that was under way is none of this process."""
        now, self.now = self.now, None
        self._leaving = {}
        self.lines.abandon()
        if now is not None:
            with suppress(Exception):
                now.placing.restore()
            if now.state == "running":  # also where another thread was about to end it
                with suppress(Exception):
                    now.profiler.abandon()
