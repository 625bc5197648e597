"""What the injector does, from its order on stdin to its end.

The order is one line of JSON: ``pid``, ``started``, ``snippet``, and ``ready``, the seconds that an interpreter may
take to start. Then a line ``release``, or the end of stdin, says that the snippet's page is not needed any more, and
before the snippet has begun, that it is not to. Out come lines of JSON, by ``kind``:

* ``queued``: ``way``, ``thread``; everything is in place, and the interpreter has to come to it
* ``entered``: ``way``, ``thread``; the snippet has run
* ``released``: nothing of adbg's is mapped any more; ``left`` where that could not be, with ``why``
* ``failed``: ``why``, and ``errno`` where the kernel refused; the target is as it was
* ``paused``: ``step``; only with ``--pause-at NUMBER|NAME``, for tests: at that step it stays until it is killed
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import select
import time
from collections.abc import Callable
from typing import Any

from adbg.engine.attach.injector.choose import Chooser
from adbg.engine.attach.injector.library import NotThere, instructions, libc_functions, python_functions
from adbg.engine.attach.injector.machine import Machine, State, Unsuitable
from adbg.engine.attach.injector.page import Page, Stage, left_behind
from adbg.engine.attach.injector.ptrace import Gone, Memory
from adbg.engine.attach.injector.visit import Abandoned, Ground, Unfit, Visit, VisitFailed, visiting
from adbg.engine.proc import Proc

OTHER_WAY = 0.3  # seconds that the main thread has for its pending call before another way is tried beside it
AGAIN = 0.05  # seconds between two looks for a thread that waits
REST = 1.0  # seconds before a thread that could not be used is stopped again
READY_TIME = 10.0  # seconds that an interpreter may take to start
TRACER_TIME = 5.0  # seconds that another tracer may have it: py-spy reads native stacks in 0.1 to 2 s
LINGER = 600.0  # seconds that a queued call may keep this process after the front end has gone


class Cancelled(Exception):
    """The front end does not want it any more, or is gone."""


class Failed(Exception):
    """It cannot be done; the text says why."""

    def __init__(self, why: str, number: int = 0) -> None:
        super().__init__(why)
        self.number = number


class FrontEnd:
    """The two pipes."""

    def __init__(self) -> None:
        self._rest = b""
        self.wants = True  # False from its "release" or its end on

    def order(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            data = os.read(0, 1 << 16)
            if not data:
                raise Cancelled
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def wait(self, seconds: float) -> None:
        """Until it says something, at most so long."""
        if not self.wants:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            self._rest += os.read(0, 4096)
            self.wants = False  # "release" is all that there is to say

    @staticmethod
    def say(kind: str, **values: object) -> None:
        with contextlib.suppress(OSError):
            os.write(1, json.dumps({"kind": kind, **values}).encode() + b"\n")


def machine() -> Machine:
    """Raises Failed."""
    name = platform.machine()
    if name == "x86_64":
        from adbg.engine.attach.injector.x86_64 import X86_64

        return X86_64()
    if name == "aarch64":
        from adbg.engine.attach.injector.aarch64 import AArch64

        return AArch64()
    raise Failed(f"adbg has no code for {name}")


class Injection:
    """One attempt to get into one process."""

    def __init__(self, front: FrontEnd, order: dict[str, Any], step: Callable[[str], None]) -> None:
        self._front = front
        self._process = Proc(order["pid"])
        self._started = order["started"]
        self._snippet: bytes = order["snippet"].encode()
        self._memory = Memory(order["pid"])
        self._check_process()
        kind = machine()
        maps = self._process.maps()
        self._functions = python_functions(self._process, maps) | libc_functions(self._process, maps)
        call_and_return, go_home = instructions(self._process, maps, kind, self._memory)
        self._ground = Ground(self._process, self._memory, kind, call_and_return, go_home, step)
        self._chooser = Chooser(self._process, kind)
        self._resting: dict[int, float] = {}
        self._ready_by = time.monotonic() + order.get("ready", READY_TIME)
        self._page: Page | None = None
        self._litter: list[Page] = []  # of others before
        self._queued = False  # by this process
        self._thread_made = False
        self._refused_by = 0.0  # when another tracer must have gone; 0: there was none

    # ------------------------------------------------------------------ in

    def enter(self) -> str:
        """Until the snippet has run; the way that it took. Raises Cancelled, Failed."""
        began = time.monotonic()
        told = ""
        while not self._take_over():
            self._check_process()
            if not self._front.wants:
                raise Cancelled
            if not told:
                told = self._way()
                self._front.say("queued", way=told, thread=self._process.pid)
            self._pause(AGAIN)
        while True:
            self._check_process()
            if self._page is not None and self._page.stage in (Stage.DONE, Stage.FAILED):
                if self._page.stage is Stage.FAILED:
                    raise Failed("the program raised an exception while adbg came in")
                return self._way()
            if not self._front.wants:
                raise Cancelled
            waited = time.monotonic() - began
            if not self._thread_made:
                self._try(waited)
            way = self._way()
            if waited > OTHER_WAY and way != told:
                told = way
                self._front.say("queued", way=way, thread=self._thread())
            self._pause(0.002 if waited < OTHER_WAY else AGAIN)

    def _way(self) -> str:
        return "ptrace-thread" if self._page is not None and self._thread_made else "ptrace-pending"

    def _thread(self) -> int:
        return (self._page.thread if self._page is not None and self._thread_made else 0) or self._process.pid

    def _try(self, waited: float) -> None:
        """A main thread that runs takes a pending call at once; one that waits may take none for hours, and then
        another thread is made. One that runs C code for long gets both, and the first that comes does it."""
        runs = self._chooser.main_waits_in() is None
        if self._queued:
            if waited > OTHER_WAY:
                self._start_thread()
        elif runs:
            self._queue()
        else:
            self._start_thread()
            if not self._thread_made and waited > AGAIN:
                self._queue()

    def _take_over(self) -> bool:
        """What injectors left behind that were killed goes when this one is done. A page that the process may still
        look into is used again; the call that is queued there then runs this snippet. False while there is one who gave
        up and waits for the process to come to the call that it queued: it takes that away, and nothing of ours could
        be run sooner."""
        threads = self._process.threads()
        self._litter.clear()
        for page in left_behind(self._process, self._memory):
            if self._page is not None and page.start == self._page.start:
                continue
            pid, started = page.owner
            with contextlib.suppress(OSError, ValueError):
                if pid and pid != os.getpid() and Proc(pid).started() == started:
                    if page.stage is not Stage.CANCELLED:
                        raise Failed(f"another adbg (process {pid}) is about to enter this process")
                    return False
            if not page.in_use(threads):
                self._litter.append(page)
            elif page.stage is not Stage.RUNNING and self._page is None:
                page.cancel()
                self._page = page
                self._queued = page.queued
                self._thread_made = page.thread in threads
                self._fill(page)
        return True

    def _fill(self, page: Page) -> None:
        owner = (os.getpid(), Proc(os.getpid()).started())
        page.write(self._ground.machine.CODE, self._functions, owner)
        page.arm(self._snippet, int(self._process.status()["SigBlk"], 16))

    def _prepare(self, visit: Visit) -> Page:
        """The page, and an interpreter that is up."""
        if self._page is None:
            self._page = visit.map_page()
            self._fill(self._page)
            self._ground.step("filled")
        if not visit.function(self._page, self._functions["Py_IsInitialized"]) & 0xFFFFFFFF:
            raise NotReady
        return self._page

    def _queue(self) -> None:
        def add(visit: Visit) -> None:
            page = self._prepare(visit)
            page.set_queued(1)
            target = page.start + self._ground.machine.PENDING
            if visit.function(page, self._functions["Py_AddPendingCall"], target, 0) & 0xFFFFFFFF:
                page.set_queued(0)
                raise Unfit("its queue of pending calls is full")
            self._queued = True
            self._ground.step("queued")

        self._attempt(self._process.pid, lambda _state: "", add)

    def _start_thread(self) -> None:
        def start(visit: Visit) -> None:
            page = self._prepare(visit)
            code = page.start + self._ground.machine.THREAD
            self._ground.step("starting")
            error = visit.function(page, self._functions["pthread_create"], page.spare, 0, code, 0) & 0xFFFFFFFF
            if error:
                raise VisitFailed(f"it can start no thread (errno {error})")
            self._thread_made = True
            self._ground.step("started")

        for tid in self._chooser.waiting():
            if not self._thread_made:
                self._attempt(tid, self._chooser.may_start_thread, start)

    def _attempt(self, tid: int, fit: Callable[[State], str], do: Callable[[Visit], None]) -> None:
        """A visit that may come to nothing: then the thread has rest for a while."""
        if self._resting.get(tid, 0.0) > time.monotonic():
            return
        try:
            with visiting(self._ground, tid, fit) as visit:
                do(visit)
        except (Unfit, Unsuitable):
            self._resting[tid] = time.monotonic() + REST
        except NotReady:
            if time.monotonic() > self._ready_by:
                raise Failed("its Python interpreter is not up, or is ending") from None
        except Abandoned:
            if self._page is not None:
                self._page.keep()
                self._page = None
            raise
        except (Gone, ProcessLookupError):  # that thread ended, or the process
            self._check_process()
        except PermissionError:
            self._wait_for_tracer()
            self._resting[tid] = time.monotonic() + AGAIN

    def _wait_for_tracer(self) -> None:
        """Raises PermissionError where it is not somebody who reads the stacks now and then, as py-spy does."""
        traced = self._process.status().get("TracerPid", "0") != "0"
        if not traced and self._refused_by:  # it has just gone
            self._refused_by = 0.0
        elif not self._refused_by and traced:
            self._refused_by = time.monotonic() + TRACER_TIME
        elif time.monotonic() > self._refused_by:
            raise PermissionError(1, "it may not be traced")

    # ------------------------------------------------------------------ out

    def clean(self) -> str:
        """Take the page away when nobody needs it; "" or why it stays."""
        if self._page is not None:
            self._page.cancel()
        end = time.monotonic() + LINGER
        while True:
            why = self._used()
            if not why and self._unmap():
                return ""
            if time.monotonic() > end:
                return why or "no thread of it could be used"
            self._check_process()
            self._pause(0.005 if time.monotonic() < end - LINGER + 1 else 0.2)

    def _used(self) -> str:
        page = self._page
        if page is None:
            return ""
        if page.queued:
            return "its main thread has a call of adbg's in its queue"
        if page.stage is Stage.RUNNING:
            return "something of it is being run"
        if self._thread_made and (not page.thread or page.thread in self._process.threads()):
            return "adbg's thread has not ended"
        return ""

    def _unmap(self) -> bool:
        """Whether it was done. The main thread may be on its way out of a page, so that is the one to look at."""
        pages = [*([] if self._page is None else [self._page]), *self._litter]

        def unmap(visit: Visit) -> None:
            for page in pages:
                self._ground.step("unmapping")
                visit.unmap(page.start)
                self._ground.step("unmapped")
            pages.clear()
            self._page = None
            self._litter.clear()

        for tid in self._process.threads() if pages else ():
            if tid == self._process.pid or (tid in self._chooser.waiting() and not self._in_pages(pages)):
                self._attempt(tid, lambda state: "it runs there" if _holds(pages, state.pc) else "", unmap)
                if not pages:
                    break
        return not pages

    def _in_pages(self, pages: list[Page]) -> bool:
        """Whether the main thread may be in one."""
        call = self._chooser.main_waits_in()
        return call is None or _holds(pages, call.pc)

    # ------------------------------------------------------------------

    def _pause(self, seconds: float) -> None:
        self._ground.let_late_go()
        self._front.wait(seconds)

    def _check_process(self) -> None:
        """Raises Failed when it ended; a number may be another process's by now."""
        try:
            alive = self._process.started() == self._started
            alive = alive and not self._process.status()["State"].startswith(("Z", "X"))
        except (OSError, KeyError, IndexError):
            alive = False
        if not alive:
            raise Failed("it ended")

    def sees_end(self) -> bool:
        try:
            self._check_process()
        except Failed:
            return True
        return False


def _holds(pages: list[Page], address: int) -> bool:
    return any(page.holds(address) for page in pages)


class NotReady(Exception):
    """The interpreter is not up."""


def run(front: FrontEnd, step: Callable[[str], None]) -> int:
    order = front.order()
    injection = Injection(front, order, step)
    try:
        way = injection.enter()
    except (Cancelled, Failed, VisitFailed, OSError) as error:
        tell(front, error)  # what follows may take minutes
        with contextlib.suppress(Failed, VisitFailed, OSError):
            injection.clean()
        return 1
    front.say("entered", way=way, thread=injection._thread())
    while front.wants and not injection.sees_end():
        front.wait(1.0)
    why = injection.clean()
    front.say("left", why=why) if why else front.say("released")
    return 0


def tell(front: FrontEnd, error: Exception) -> None:
    if isinstance(error, Cancelled):
        front.say("cancelled")
    elif isinstance(error, (Failed, VisitFailed, NotThere, Gone)):
        front.say("failed", why=str(error), errno=getattr(error, "number", 0))
    elif isinstance(error, (FileNotFoundError, ProcessLookupError)):
        front.say("failed", why="it ended", errno=0)
    elif isinstance(error, OSError):
        front.say("failed", why=error.strerror or str(error), errno=error.errno or 0)
    else:  # a defect: the front end shows it
        front.say("failed", why=f"{type(error).__name__}: {error}", errno=0)


def main(words: list[str]) -> int:
    front = FrontEnd()
    pause_at = words[words.index("--pause-at") + 1] if "--pause-at" in words else ""
    steps = itertools.count()

    def step(name: str) -> None:
        if pause_at in (name, str(next(steps))):
            front.say("paused", step=name)
            while True:
                time.sleep(60)

    try:
        return run(front, step)
    except Exception as error:
        tell(front, error)
    return 1
