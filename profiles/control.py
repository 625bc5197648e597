"""Starts and stops a profiler at the bounds of its region. In the program; one profile at a time.

The bounds are backward calls, stops and lines, told on the program's threads. A profiler that is ``bound`` measures the
thread on which it starts, so its region begins and ends there: at a backward call or a stop of that thread, or between
two instructions of the main thread.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.outside import own, suppress
from adbg.engine.protocol import messages as p
from adbg.engine.python.line_trace import MAIN_THREAD, LineRegions
from adbg.engine.session.observers import Observer
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint
from adbg.profiles import registry
from adbg.profiles.base import META
from adbg.profiles.folders import make_folder, parent_folder, reason, write_meta
from adbg.profiles.measurement import Measurement, displaced_by, told
from adbg.profiles.placing import Placing
from adbg.profiles.region import Region
from adbg.profiles.repeat import repeated, run_in_pieces

GIVEN_UP = 5.0  # seconds that giving up waits for the piece at hand
HELD = 30.0  # seconds that a region's begin waits for a profiler beside the program
COMES = 10.0  # seconds in which the main thread has to run Python, for a profiler that begins on it now
_FROM_NOW = ("run", "seconds")
_LIVE = ("waiting", "ready", "running")


class Profiling(Observer):
    """The profile of this process. ``run_dir`` is asked when an artifact's folder is made."""

    def __init__(self, session: Session, send: Callable[[Any], None], run_dir: Callable[[], str]) -> None:
        self._session = session
        self._send = send
        self._run_dir = run_dir
        self._now: Measurement | None = None
        self._last: Measurement | None = None
        self._lines = LineRegions(session.problems.problem)
        self._lock = threading.RLock()

    # ------------------------------------------------------------ requests, on "adbg-reader"

    def answer(self, request: p.Profile, point: PausedPoint | None = None) -> p.ProfileBody:
        """Answer ``adbg/profile``; ``point``: on the thread that stands there. Raises AdbgError."""
        if point is not None:
            again = repeated(point, request)
            self._session.change(lambda: self._start(request))
            self._repeat(again, request.region.count)
        elif request.action == "start":
            self._session.change(lambda: self._start(request))
            if self._now is not None:
                self._tell(self._now)
            self._begin_now()
        elif request.action == "stop":
            self._stop_now()
        elif request.action == "go":
            self._go(request.folder)
        elif request.action == "drop":
            self._drop()
        elif request.action not in ("state", "list"):
            raise CommandError(f"unknown action {request.action!r}", "start, stop, state, list, go")
        rows = [registry.row_of(name) for name in registry.REGISTRY] if request.action == "list" else []
        return p.ProfileBody(self.state(), rows)

    def state(self) -> p.ProfileState:
        return told(self._now or self._last)

    def _start(self, request: p.Profile) -> None:
        with self._lock:
            if self._now is not None:
                raise CommandError(
                    f"{self._now.profiler.name} is at work already: {self._now.region}", "`profile stop` ends it"
                )
            profiler = registry.make(request.profiler)
            can = profiler.available()
            if not can.ok:
                raise CommandError(f"{profiler.name} cannot run here: {can.why}", can.hint)
            region = Region(**{name: getattr(request.region, name) for name in Region.__slots__})
            lines = region.lines if region.place else None
            placing = Placing()
            placing.asked(request.cores, request.nice)
            folder = make_folder(request.folder or parent_folder(self._run_dir()), profiler.name)
            self._now = now = Measurement(profiler, region, folder, placing)
            profiler.displaced = lambda by: self._finish(now, displaced_by(by))  # type: ignore[method-assign]
            if isinstance(profiler, Observer):
                self._session.observe(profiler)
                if hasattr(profiler, "stacks"):
                    profiler.stacks = self._stacks
            for backend in self._session.backends:
                self._watch(backend)
            if lines is not None:
                if region.kind == "iterations":
                    self._lines.add(lines, self._iteration_begins, lambda: None)
                else:
                    self._lines.add(lines, self._entered_lines, self._left_lines)

    def _stacks(self, on: bool) -> None:
        """Of the nodes made from now on, where the user wants them kept at all."""
        if self._session.stacks and self._session.attached:
            for backend in self._session.backends:
                backend.set_stacks(on)

    def _begin_now(self) -> None:
        """Where the region has begun already. At a stop it begins when the program goes on."""
        now = self._now
        if now is None or self._session.parked is not None:
            return
        if now.region.kind in _FROM_NOW:
            if not now.profiler.bound:
                self._begin()
            else:
                MAIN_THREAD.call(lambda frame: self._begin(now))
                threading.Thread(target=self._give_up, args=(now,), name="adbg-profile", daemon=True).start()

    def _give_up(self, now: Measurement) -> None:
        """A main thread that never comes to Python: a hang, a call of C that takes long, a wait for other threads."""
        if not now.over.wait(COMES) and now.state == "waiting":
            why = f"the main thread ran no Python within {COMES:.0f} s: it waits, or is in C code"
            self._finish(now, f"{why}; py-spy sees it, and iterations are measured on the thread that calls backward")

    def program_starts(self) -> None:
        """On the main thread, right before the script's first instruction."""
        now = self._now
        if now is None:
            return
        region = now.region
        if region.kind in _FROM_NOW or (region.kind == "iterations" and not region.warmup and not region.place):
            self._begin()

    def _repeat(self, again: Callable[[int], None], count: int) -> None:
        """The region is this."""
        self._begin()
        now = self._now
        if now is None or now.state != "running":
            return
        why = run_in_pieces(again, count, now)
        self._finish(now, why)

    def _stop_now(self) -> None:
        now = self._now
        if now is None:
            raise CommandError("nothing is being profiled", "for example: profile cprofile 10 iterations")
        if now.state != "running":
            self._finish(now, "stopped before the region began")
        elif now.region.kind == "node":
            now.given_up = True
            now.over.wait(GIVEN_UP)
        elif not now.profiler.bound or now.thread == threading.get_ident():
            self._finish(now, "")
        else:
            self._on_its_thread(now)

    def _drop(self) -> None:
        """As if it had not been asked for."""
        with self._lock:
            now = self._now
            if now is None:
                return
            with suppress(Exception):
                if now.state == "running":
                    now.profiler.stop()
            now.state = "idle"
            now.put_back()
            shutil.rmtree(now.folder, ignore_errors=True)
            self._over(now)
            self._last = None

    def _on_its_thread(self, now: Measurement, why: str = "", leaves: bool = False) -> None:
        """A bound profiler ends where it began: between two instructions of the main thread, or at the end of a
        backward. Of a thread that comes to neither within a second (a hang, a long kernel) some can be ended from here;
        the others end when it does, or, where adbg ``leaves``, without what they measured."""
        now.ending = (why,)
        if now.thread == threading.main_thread().ident:
            MAIN_THREAD.call(lambda frame: self._finish(now, why))
        if now.over.wait(1.0):
            return
        if now.profiler.ends_anywhere or leaves:
            self._finish(now, why)
        else:
            now.why = "ends as soon as its thread runs Python"

    def _go(self, why: str) -> None:
        now = self._now
        if now is not None:
            now.why = why
            now.go.set()

    # ------------------------------------------------------------ bounds

    def _begin(self, asked: Measurement | None = None) -> None:
        with self._lock:
            now = self._now
            if now is None or now.state != "waiting" or (asked is not None and asked is not now):
                return
            try:
                now.placing.apply()
                if now.profiler.where == "outside":
                    self._hold(now)
                now.begins()
                self._write_meta(now)  # a killed process leaves this one
                self._tell(now)
                if now.region.kind == "seconds":
                    threading.Thread(target=self._time_out, args=(now,), name="adbg-profile", daemon=True).start()
                now.start()
            except own(Exception) as error:
                self._failed(now, error)
                return
        if isinstance(now.profiler, Observer):
            self._session.rearm()
        if now.profiler.phase is not None:
            for backend in self._session.backends:
                self._watch(backend)

    def _time_out(self, now: Measurement) -> None:
        now.over.wait(now.region.count)
        if self._now is now:
            self._stop_now()

    def _hold(self, now: Measurement) -> None:
        """Until the front end has the profiler running beside this process."""
        now.state = "ready"
        self._tell(now)
        if not now.go.wait(HELD):
            now.warnings.append(f"{now.profiler.name} did not begin in time: the begin of the region is missing")

    def _finish(self, now: Measurement, why: str) -> None:
        """Stop, write, tell. ``why``: what ended it early."""
        with self._lock:
            if self._now is not now or now.state not in _LIVE:
                return
            ran = now.state == "running"
            if now.ending:
                now.why = ""
            now.state, now.why = ("partial", why) if why else ("done", now.why)
            try:
                if ran:
                    now.stop()
                    now.note_displaced()
                    measured = now.artifact is not None and bool(now.artifact.file)
                    if not measured and now.profiler.where != "outside":
                        now.state, now.why = "partial", why or "nothing ran in the region: there is nothing to show"
                now.put_back()
                self._write_meta(now)
            except own(Exception) as error:
                self._failed(now, error)
                return
            self._over(now)
        self._tell(now)

    def _write_meta(self, now: Measurement) -> None:
        frameworks, rank = [backend.name for backend in self._session.backends], self._session.known_rank()
        write_meta(now.folder, {**now.meta(frameworks), "rank": rank})

    def _failed(self, now: Measurement, error: BaseException) -> None:
        now.state, now.why = "failed", reason(error, now.folder)
        now.put_back()
        with suppress(OSError):
            if set(os.listdir(now.folder)) <= {META}:  # nothing was measured
                shutil.rmtree(now.folder)
            else:
                self._write_meta(now)
        self._over(now)
        self._tell(now)

    def _over(self, now: Measurement) -> None:
        self._now, self._last = None, now
        now.over.set()
        for backend in self._session.backends:
            self._watch(backend)
        if not self._lines.empty:
            self._lines.clear()
        if self._session.attached:
            self._session.rearm()

    def _tell(self, now: Measurement) -> None:
        self._send(p.ProfileChanged(told(now)))

    # ------------------------------------------------------------ Observer

    @property
    def active(self) -> bool:
        return self._now is not None

    def backend_added(self, backend: Backend) -> None:
        self._watch(backend)

    def _watch(self, backend: Backend) -> None:
        """Arming would walk every graph: a tenth of a small step's time."""
        with suppress(Unsupported):
            backend.watch_iterations(self._tick if self._now is not None else None)
        with suppress(Unsupported):
            now = self._now
            backend.watch_phases(now.profiler.phase if now is not None and now.state == "running" else None)

    def _tick(self, begins: bool) -> None:
        """An outermost backward begins or has ended on this thread."""
        try:
            if begins:
                self._backward_begins()
            else:
                self._boundary()
            now = self._now
            if now is not None and now.state == "running":
                now.profiler.tick(begins)
        except own(Exception) as error:
            self._session.problems.defect("the bound of a profile was missed", error)

    def _backward_begins(self) -> None:
        now = self._now
        if now is not None and now.state == "waiting" and now.region.kind == "backward":
            self._begin()
            now.counted = threading.get_ident()

    def _boundary(self) -> None:
        """An outermost backward ended on this thread."""
        now = self._now
        if now is not None and not (now.region.kind == "iterations" and now.region.place):
            self._passed(now, max(now.region.warmup, 1))

    def _iteration_begins(self) -> None:
        """The line runs at which an iteration begins, and the one before has ended."""
        now = self._now
        try:
            if now is not None:
                self._passed(now, now.region.warmup + 1)
        except own(Exception) as error:
            self._session.problems.defect("the bound of a profile was missed", error)

    def _passed(self, now: Measurement, first: int) -> None:
        """A bound of iterations, on this thread; the region begins at the ``first`` one."""
        if now.counted and now.counted != threading.get_ident():
            return
        now.counted = now.counted or threading.get_ident()
        region = now.region
        if now.state == "running":
            now.iterations += 1
            if now.ending and now.thread == threading.get_ident():
                self._finish(now, now.ending[0])
                return
            if region.kind == "backward" or (region.kind == "iterations" and now.iterations >= region.count):
                self._finish(now, "")
            elif not now.profiler.bound or now.thread == threading.get_ident():
                self._save(now)
        elif now.state == "waiting" and region.kind == "iterations":
            now.ends += 1
            if now.ends >= first:
                self._begin()

    def _save(self, now: Measurement) -> None:
        try:
            now.save()
        except own(Exception) as error:
            self._session.problems.problem(f"the profile cannot be saved meanwhile: {type(error).__name__}: {error}")

    def before_stop(self) -> None:
        now = self._now
        if now is None or now.state != "running":
            return
        if now.region.kind == "stop":
            if not now.profiler.bound or now.thread == threading.get_ident():
                self._finish(now, "")
        else:
            now.profiler.pause()

    def stop_over(self) -> None:
        now = self._now
        if now is not None and now.state == "waiting" and now.region.kind in ("stop", *_FROM_NOW):
            self._begin()
        elif now is not None and now.state == "running":
            now.profiler.resume()

    def _entered_lines(self) -> None:
        now = self._now
        if now is not None and now.state == "waiting":
            self._begin()
        elif now is not None and now.state == "running" and now.thread == threading.get_ident():
            now.profiler.resume()

    def _left_lines(self) -> None:
        now = self._now
        if now is None or now.state != "running" or now.thread != threading.get_ident():
            return
        now.passes += 1
        if now.passes >= max(now.region.count, 1):
            self._finish(now, "")
        else:
            now.profiler.pause()

    def program_ends(self) -> None:
        """On the main thread, when the program's own code is over: what the interpreter and the framework do to take
        themselves down (half a second with torch on a busy machine) is no part of any region."""
        self._end("the program ended")

    def detach(self) -> None:
        """The front end leaves."""
        self._end("the program ended, or was let go,")

    def _end(self, what: str) -> None:
        now = self._now
        if now is None:
            return
        now.go.set()
        why = now.unfinished(what)
        if now.state == "running" and now.profiler.bound and now.thread != threading.get_ident():
            self._on_its_thread(now, why, leaves=True)
        else:
            self._finish(now, why)

    def abandon(self) -> None:
        now, self._now = self._now, None
        self._lock = threading.RLock()
        self._lines.abandon()
        if now is not None:
            with suppress(Exception):
                now.placing.restore()
            if now.state == "running":
                with suppress(Exception):
                    now.profiler.abandon()
