"""All-stop: one thread at a time decides at a hook, and one at most is parked.

The *turn* is a lock that a thread holds while it is in a hook of adbg. The thread that parks keeps it, so any other
that reaches a hook waits for it ("waiting") and decides afterwards. Whatever runs on the holder's own thread meanwhile
(an expression that runs a backward, a signal handler) passes through the hooks.
"""

from __future__ import annotations

import queue
import signal
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any, TypeVar

from adbg.engine import own_threads
from adbg.engine.flag import Flag
from adbg.engine.session.running_call import Running
from adbg.engine.session.stepping import Place
from adbg.engine.session.stop_point import PausedPoint

Job = Callable[[], None]
GLANCE = 0.25  # seconds: a Ctrl-C that comes just before the main thread begins to wait would not end the wait
T = TypeVar("T")
_AT_ONCE = 10_000  # ns: another thread that was just in a hook; to wait longer is to see it at a stop
_WAKING = signal.SIGURG  # ignored unless a program asks for it


class Turn:
    """The right to decide. ``take(work, ...)`` around all that a hook does costs 0.4 us when nobody else is in one.

    A KeyboardInterrupt can come between any two Python instructions. A lock entered by ``with`` directly is released
    then; one acquired in an ``__enter__`` of our own would now and then be lost, and the next hook wait for ever.
    """

    def __init__(self) -> None:
        self.quiet: tuple[Callable[[bool], None], ...] = ()  # called with True in the turn, with False at its end
        self._lock = threading.Lock()
        self._owner = 0  # ident of the holder; what an interrupt left behind is harmless while the lock is free
        self.waiting: set[int] = set()
        self.waited_ns = 0  # how long the holder waited: somebody stood at a stop of another thread
        self._ended = 0  # turns that are over

    def take(self, work: Callable[..., T], *args: Any) -> T:
        """``work(*args)`` when no other thread holds the turn any more."""
        ident = get_ident()
        since, ended = perf_counter_ns(), self._ended
        # Without a look at the lock first: another thread may take it, and stop, right behind the look.
        self.waiting.add(ident)
        try:
            with self._lock:
                waited = perf_counter_ns() - since
                # Who had the lock gave it back since. Else nobody had it, however long the machine took to get here:
                # 10 to 22 us in 14 of 20 runs of the node timer's tests, which then threw a call away.
                self.waited_ns = waited if waited > _AT_ONCE and self._ended != ended else 0
                self.waiting.discard(ident)
                self._owner = ident
                quiet = self.quiet
                try:
                    for tell in quiet:
                        tell(True)
                    return work(*args)
                finally:
                    self._owner = 0
                    self._ended += 1
                    for tell in quiet:
                        tell(False)
        finally:
            self.waiting.discard(ident)

    @property
    def locked(self) -> Callable[[], bool]:
        """``taken`` as a function, for who asks often."""
        return self._lock.locked

    @property
    def taken(self) -> bool:
        """Some thread holds it."""
        return self._lock.locked()

    def mine(self) -> bool:
        """Whether the calling thread holds it."""
        return self._owner == get_ident() and self._lock.locked()


class Abandoned(BaseException):
    """Raised in a running job whose client disconnected."""


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Have ``kind`` raised in ``thread`` at its next instruction.

    It must be let happen. Taken back (with NULL), CPython 3.11 keeps looking for it for ever, in all threads, and the
    first function that anybody traces after that (pdb, coverage, ``vlog at``) never begins: 3.11.7 loops there.
    """
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _wake(number: int, frame: object) -> None:
    """Nothing: to begin is enough."""


def _interrupt_what_lasts(parked: weakref.ref[Parked], over: Flag, patience: float) -> None:
    """What a stop holds goes on the thread that stopped, not on this one."""
    while not over.wait(patience):
        if (stopped := parked()) is not None:
            stopped.interrupt()
        del stopped


class Parked:
    """One stop of one thread: its point, and the queue of what it is to do there. ``run`` is called by that thread."""

    def __init__(self, point: PausedPoint, place: Place, running: Running | None) -> None:
        self.point = point
        self.place = place
        self.running = running
        self.thread = get_ident()
        self.busy = False  # a job is running: expressions may be running a backward
        self.answers: Any = None  # the answers of this stop, made on its thread with the first question
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._open = True
        self._leaving: Job | None = None
        self._resumed = False
        self._interrupted = False
        self._listening: Any = None  # what the waking signal did before this stop, while it is ours
        self.over = Flag()  # the thread has left

    def post(self, job: Job) -> bool:
        """Have the parked thread run ``job``; False when it continues already."""
        with self._gate:
            if self._open:
                self._jobs.put(job)
            return self._open

    def resume(self) -> None:
        """Let the thread continue as soon as the current job is done. From any thread."""
        self._resumed = True
        self._jobs.put(None)

    def let_go(self, patience: float) -> None:
        """``resume``, and nobody waits for the answer that the thread may be working on: after so many seconds that is
        interrupted."""
        self.resume()
        own_threads.begin(_interrupt_what_lasts, "adbg-release", (weakref.ref(self), self.over, patience))

    def leave(self, then: Job) -> None:
        """Called within a job: the thread continues after it, and calls ``then`` once no request can reach it."""
        self._leaving = then

    def run(self) -> None:
        """Run jobs until resumed. KeyboardInterrupt leaves through here (the wait for a job is interruptible).

        Abandoned may come at any call below, also one step after its job ended; ``stay`` catches what slips out here.
        """
        while True:
            try:
                self._settle()
                if self._leaving is not None or self._resumed:
                    return
                try:
                    job = self._jobs.get(timeout=GLANCE)
                except queue.Empty:
                    continue
                if job is None:
                    return
                self._listen()
                self.busy = True
                job()
            except Abandoned:
                continue

    def stay(self) -> None:
        """``run``, and leave with no interrupt on its way."""
        while True:
            try:
                try:
                    self.run()
                finally:
                    self._settle()
                return
            except Abandoned:
                continue

    def interrupt(self) -> None:
        """Raise Abandoned in the job that is running. It comes with the next Python instruction there. On the main
        thread a wait in C (``time.sleep``, a lock, a queue, a socket, ``input()``) is woken for it by a signal; on
        another thread Python ends no such wait, and nowhere a computation in C."""
        with self._gate:
            if self.busy:
                self._interrupted = True
                _raise_in(self.thread, Abandoned)
                if self._listening is not None:
                    signal.pthread_kill(self.thread, _WAKING)

    def _listen(self) -> None:
        """Have a signal that does nothing by itself call a Python function: the first instruction of that raises what
        ``interrupt`` sent, and so ends the wait. Put back when the stop is over; one that the program uses is left."""
        if self._listening is None and threading.current_thread() is threading.main_thread():
            before = signal.getsignal(_WAKING)
            if before in (signal.SIG_DFL, signal.SIG_IGN):
                self._listening = before
                signal.signal(_WAKING, _wake)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            signal.signal(_WAKING, self._listening)
            self._listening = None

    def _settle(self) -> None:
        """The job is over: an interrupt that was on its way must not reach the program. It comes here instead."""
        while True:
            try:
                with self._gate:
                    self.busy = False
                    interrupted, self._interrupted = self._interrupted, False
                if not interrupted:
                    return
                _raise_in(self.thread, Abandoned)  # takes the place of one on its way; another one, where it came
                while True:
                    pass
            except Abandoned:
                continue

    def close(self) -> None:
        """No more jobs from now on. Those that came too late are run: each finds that the stop is over, and says so."""
        with self._gate:
            self._open = False
        self._stop_listening()
        self.over.set()
        if self._leaving is not None:
            self._leaving()
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job()
