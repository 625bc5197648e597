"""Starts and stops a profiler at the bounds of its region. In the program; one profile at a time.

The bounds are backward calls, stops and lines, told on the program's threads. A profiler that is ``bound`` measures the
thread on which it starts, so its region begins and ends there: at a backward call or a stop of that thread, or between
two instructions of the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.errors import CommandError
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.python.line_trace import MAIN_THREAD
from adbg.engine.session.observers import Observer
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint
from adbg.profiles import registry
from adbg.profiles.course import Course
from adbg.profiles.folders import make_folder, parent_folder
from adbg.profiles.measurement import Measurement, displaced_by, lives, told
from adbg.profiles.placing import Placing
from adbg.profiles.region import Region
from adbg.profiles.repeat import repeated, run_in_pieces

COMES_SOON = 1.0  # seconds in which the thread that is measured comes to end it, as a rule
GIVEN_UP = 5.0  # seconds that giving up waits for the piece at hand
ENDS = 60.0  # seconds that the program's end waits for another thread, which writes a profile
COMES = 10.0  # seconds in which the main thread has to run Python, for a profiler that begins on it now
_FROM_NOW = ("run", "seconds")


class Profiling(Observer):
    """The profile of this process. ``run_dir`` is asked when an artifact's folder is made."""

    def __init__(self, session: Session, send: Callable[[Any], None], run_dir: Callable[[], str]) -> None:
        self._session = session
        self._run_dir = run_dir
        self._course = Course(session, send, self._tick)

    @property
    def _now(self) -> Measurement | None:
        return self._course.now

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
                self._course.tell(self._now)
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
        return told(self._now or self._course.last, self._session.known_rank())

    def _start(self, request: p.Profile) -> None:
        """Under the session's lock of arming."""
        course = self._course
        course.ready()
        profiler = registry.make(request.profiler)
        can = profiler.available()
        if not can.ok:
            raise CommandError(f"{profiler.name} cannot run here: {can.why}", can.hint)
        region = Region(**{name: getattr(request.region, name) for name in Region.__slots__})
        lines = region.lines if region.place else None
        placing = Placing()
        placing.asked(request.cores, request.nice)
        folder = make_folder(request.folder or parent_folder(self._run_dir()), profiler.name)
        course.now = now = course.measurement(profiler, region, folder, placing)
        profiler.displaced = lambda by: self._displaced(now, by)  # type: ignore[method-assign]
        if isinstance(profiler, Observer):
            self._session.observe(profiler)
            if hasattr(profiler, "stacks"):
                profiler.stacks = self._stacks
        course.watch_all()
        if lines is not None:
            if region.kind == "iterations":
                course.lines.add_turns(lines, self._iteration_begins)
            else:
                course.lines.add(lines, self._entered_lines, self._left_lines)

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
            if now.profiler.where == "outside":  # this is the thread that is told when it is ready
                threading.Thread(target=self._course.begin, args=(now,), name="adbg-profile", daemon=True).start()
            elif not now.profiler.bound:
                self._course.begin()
            else:
                MAIN_THREAD.call(lambda frame: self._course.begin(now))
                threading.Thread(target=self._give_up, args=(now,), name="adbg-profile", daemon=True).start()

    def _give_up(self, now: Measurement) -> None:
        """A main thread that never comes to Python: a hang, a call of C that takes long, a wait for other threads."""
        if not now.over.wait(COMES) and now.state == "waiting":
            why = f"the main thread ran no Python within {COMES:.0f} s: it waits, or is in C code; py-spy sees it, and"
            self._course.finish(now, f"{why} iterations are measured on the thread that calls backward")

    def program_starts(self) -> None:
        """On the main thread, right before the script's first instruction."""
        now = self._now
        if now is None:
            return
        region = now.region
        if region.kind in _FROM_NOW or (region.kind == "iterations" and not region.warmup and not region.place):
            self._course.begin()

    def _repeat(self, again: Callable[[int], None], count: int) -> None:
        """The region is this."""
        self._course.begin()
        now = self._now
        if now is None or not now.running:
            return
        why = run_in_pieces(again, count, now)
        self._course.finish(now, why)

    def _stop_now(self) -> None:
        now = self._now
        if now is None:
            raise CommandError("nothing is being profiled", "for example: profile cprofile 10 iterations")
        if now.running and now.region.kind == "node":
            now.given_up = True
            now.over.wait(GIVEN_UP)
        else:
            self._end_now(now, "")

    def _end_now(self, now: Measurement, why: str) -> None:
        """On this thread, or on the one that it measures."""
        if now.running and now.profiler.bound and now.thread != threading.get_ident():
            self._on_its_thread(now, why)
        else:
            self._course.finish(now, why)
            now.over.wait(0 if now.running else COMES_SOON)  # another thread was about to begin it

    def _drop(self) -> None:
        """As if it had not been asked for."""
        now = self._now
        if now is None:
            return
        now.dropped = True
        self._end_now(now, "")

    def _on_its_thread(self, now: Measurement, why: str, ends: bool = False) -> None:
        """A bound profiler ends where it began: between two instructions of the main thread, or at a backward. Of a
        thread that comes to neither within a second (a hang, a long kernel) some can be ended from here; the others
        end when it does, also if adbg is gone by then; or, where the program ``ends``, without what they measured."""
        now.ending = (why,)
        if now.thread == threading.main_thread().ident:
            MAIN_THREAD.call(lambda frame: self._course.finish(now, why))
        if now.over.wait(COMES_SOON):
            return
        if now.profiler.ends_anywhere or ends:
            self._course.finish(now, why)
        else:
            now.why = "ends as soon as its thread runs Python"
            now.profiler.end_later(lambda: self._course.finish(now, why))

    def _displaced(self, now: Measurement, by: str) -> None:
        """On the thread that starts another profiler: the program's waits until this one has ended where it began. It
        cannot be ended anywhere else, and torch dies of two that are at work at once."""
        why = displaced_by(by)
        if now.state != "running" or now.may_end_here:
            self._course.finish(now, why)
            return
        now.ending = (why,)
        if now.thread == threading.main_thread().ident:
            MAIN_THREAD.call(lambda frame: self._course.finish(now, why))
            for _ in range(int(COMES)):
                MAIN_THREAD.wake()
                if now.over.wait(1.0):
                    return
        elif now.over.wait(COMES):
            return
        self._course.finish(now, why)

    def _go(self, why: str) -> None:
        now = self._now
        if now is not None:
            now.why = why
            now.go.set()

    # ------------------------------------------------------------ Observer

    @property
    def active(self) -> bool:
        return self._now is not None

    def backend_added(self, backend: Backend) -> None:
        self._course.watch(backend)

    def _tick(self, begins: bool) -> None:
        """An outermost backward begins or has ended on this thread."""
        try:
            self._course.resume()
            if begins:
                self._backward_begins()
            else:
                self._boundary()
            now = self._now
            if now is not None and now.running:
                now.profiler.tick(begins)
        except own(Exception) as error:
            self._session.problems.defect("the bound of a profile was missed", error)

    def _backward_begins(self) -> None:
        now = self._now
        if now is not None and now.state == "waiting" and now.region.kind == "backward":
            self._course.begin()
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
            if lives(now.counted):
                return
            if now.running and now.profiler.bound:
                self._course.finish(now, now.unfinished("its thread ended"))
                return
            now.counted = now.ends = 0
        now.counted = now.counted or threading.get_ident()
        region = now.region
        if now.running:
            now.iterations += 1
            if now.ending and now.thread == threading.get_ident():
                self._course.finish(now, now.ending[0])
                return
            if region.kind == "backward" or (region.kind == "iterations" and now.iterations >= region.count):
                self._course.finish(now, "")
            elif not now.profiler.bound or now.thread == threading.get_ident():
                self._course.save(now)
        elif now.state == "waiting" and region.kind == "iterations":
            now.ends += 1
            if now.ends >= first:
                self._course.begin()

    def before_stop(self) -> None:
        now = self._now
        if now is None or not now.running:
            return
        if now.region.kind == "stop":
            if not now.profiler.bound or now.thread == threading.get_ident():
                self._course.finish(now, "")
        else:
            now.profiler.pause()

    def stop_over(self) -> None:
        now = self._now
        if now is not None and now.state == "waiting" and now.region.kind in ("stop", *_FROM_NOW):
            self._course.begin()
        elif now is not None and now.running:
            now.profiler.resume()

    def _entered_lines(self) -> None:
        now = self._now
        if now is not None and now.state == "waiting":
            self._course.begin()
        elif now is not None and now.running and now.thread == threading.get_ident():
            now.profiler.resume()

    def _left_lines(self) -> None:
        now = self._now
        if now is None or not now.running or now.thread != threading.get_ident():
            return
        now.passes += 1
        if now.passes >= max(now.region.count, 1):
            self._course.finish(now, "")
        else:
            now.profiler.pause()

    def program_ends(self) -> None:
        """On the main thread, when the program's own code is over: what the interpreter and the framework do to take
        themselves down (half a second with torch on a busy machine) is no part of any region."""
        self._course.resume()
        now = self._now
        self._let_go("the program ended", ends=True)
        if now is not None and now.asked_to_end:  # set already, unless another thread is at it
            now.over.wait(ENDS)

    def detach(self) -> None:
        """The front end leaves. Under the session's lock of arming: nothing here may wait for a thread of the
        program that may come for it."""
        self._course.resume()
        self._let_go("the program ended, or was let go,")

    def _let_go(self, what: str, ends: bool = False) -> None:
        now = self._now
        if now is None:
            return
        why = now.unfinished(what)
        if now.running and now.profiler.bound and now.thread != threading.get_ident():
            self._on_its_thread(now, why, ends)
        else:
            self._course.finish(now, why)

    def abandon(self) -> None:
        self._course.abandon()
