"""Getting into the processes of a program that runs already: one thread, "adbg-enter", for each.

A process is entered once; its agent then dials the session's socket. What has been mapped into it to get there is taken
away as soon as that agent has said hello. A process that cannot be entered keeps no other one waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from adbg.engine.attach.enter import Progress, enter
from adbg.engine.attach.stacks_read import after_entering, before_entering
from adbg.engine.attach.target import Target, examine
from adbg.engine.errors import AdbgError, AttachError, DebuggeeGone
from adbg.engine.protocol.messages import ProcessInfo, Refused
from adbg.engine.protocol.rendezvous import SessionConfig
from adbg.tui.debugger.client import Client, connect
from adbg.tui.debugger.job.look import lives
from adbg.tui.debugger.job.quiet import tell_when_queued
from adbg.tui.debugger.program import Entering

HELLO = 180.0  # seconds from the entry to the agent's hello: beside C calls that keep the lock for 1 s it takes 30
LONG = 3.0  # seconds in the queue after which the others of a job begin without it
GIVE_UP = 5.0  # seconds that those under way have to end when they are given up

OnAgent = Callable[[Client, ProcessInfo], None]


class Cancelled(AdbgError):
    """The user gave up while adbg was getting in."""


@dataclass
class One:
    """A process to be entered.

    Attributes:
        ms: from the begin to its agent's hello.
        way: ``Entry.way``, "" while that is not known.
        refused: why no agent can start there, as the process itself says.
    """

    pid: int
    since: float = field(default_factory=time.monotonic)
    queued: bool = False
    blocked: str = ""
    way: str = ""
    ms: float | None = None
    refused: str = ""
    error: AdbgError | None = None
    entered: threading.Event = field(default_factory=threading.Event)  # ``enter`` is through
    hello: threading.Event = field(default_factory=threading.Event)
    joined: threading.Event = field(default_factory=threading.Event)  # it is one of the session's processes
    thread: threading.Thread | None = None

    @property
    def under_way(self) -> bool:
        return not self.hello.is_set() and self.error is None


class WayIn:
    """All entries of one session.

    Args:
        on_agent: gets each agent, as ``Program.start`` says.
        on_failure: told of each process that could not be entered, on its thread.
        on_note: gets a line for the user where something was left in a process.
    """

    def __init__(
        self, on_agent: OnAgent, on_failure: Callable[[One], None], on_note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._on_agent = on_agent
        self._on_failure = on_failure
        self._on_note = on_note
        self._lock = threading.Lock()
        self._ones: dict[int, One] = {}
        self.cancelled = threading.Event()
        self.session_file = Path()

    # ------------------------------------------------------------------ what stands

    @property
    def entering(self) -> tuple[Entering, ...]:
        """Those that are under way."""
        return tuple(Entering(o.pid, o.since, o.queued, o.blocked) for o in self._all() if o.under_way)

    @property
    def gathering(self) -> bool:
        """One of them may join any moment; one that has been queued for ``LONG`` is not waited for."""
        now = time.monotonic()
        return any(
            not (o.joined.is_set() or o.error is not None or (o.queued and now - o.since > LONG)) for o in self._all()
        )

    def _all(self) -> list[One]:
        with self._lock:
            return list(self._ones.values())

    def known(self, pid: int) -> One | None:
        with self._lock:
            return self._ones.get(pid)

    @property
    def pids(self) -> tuple[int, ...]:
        """Those that were entered, or are to be."""
        with self._lock:
            return tuple(self._ones)

    def forget(self, pid: int) -> None:
        """It may be entered again."""
        with self._lock:
            self._ones.pop(pid, None)

    # ------------------------------------------------------------------ going in

    def begin(self, pid: int) -> One:
        """Enter process ``pid`` on a thread of its own."""
        one = One(pid)
        with self._lock:
            self._ones[pid] = one
        one.thread = threading.Thread(target=self._run, args=(one,), name="adbg-enter", daemon=True)
        one.thread.start()
        return one

    def greeted(self, client: Client, info: ProcessInfo) -> None:
        """Its agent said hello."""
        one = self.known(info.pid)
        if one is not None:
            one.ms = (time.monotonic() - one.since) * 1e3
            one.hello.set()
        if self.cancelled.is_set():
            client.close()
        else:
            self._on_agent(client, info)
        if one is not None:
            one.joined.set()

    def refused(self, refused: Refused) -> None:
        """adbg's code ran there, and no agent can start."""
        one = self.known(refused.pid)
        if one is not None:
            one.refused = refused.reason

    def _run(self, one: One) -> None:
        try:
            if not self._listens(one):
                self._enter(one)
        except AdbgError as error:
            one.error = error
        except Exception as error:  # a defect here costs this process alone
            said = f"{type(error).__name__}: {error}"
            one.error = AttachError(f"adbg itself failed to get into process {one.pid}: {said}", "please report it")
        if one.error is not None and not one.hello.is_set():
            self._on_failure(one)

    def _listens(self, one: One) -> bool:
        """It called ``adbg.listen()``: nothing has to be done to it."""
        try:
            client, config = connect(one.pid)
        except DebuggeeGone:
            return False
        one.way = "listening"
        one.entered.set()
        self.greeted(client, listening_process(one.pid, config))
        return True

    def _enter(self, one: One) -> None:
        target = examine(one.pid)
        before_entering(one.pid)

        def tell(progress: Progress) -> None:
            if progress.kind == "queued" and not one.queued:
                tell_when_queued(one.pid, lambda: one.queued and one.under_way, self.cancelled, self._on_note)
            one.queued = progress.kind == "queued"
            one.blocked = progress.blocked
            one.way = progress.way or one.way

        try:
            self._go_in(one, target, tell)
        finally:
            after_entering(one.pid)

    def _go_in(self, one: One, target: Target, tell: Callable[[Progress], None]) -> None:
        entry = enter(target, self.session_file, tell, self.cancelled)
        one.way = entry.way
        one.entered.set()
        try:
            self._wait_for_hello(one)
        finally:
            left = entry.release()
        if left and lives(one.pid):
            self._on_note(f"a page that adbg mapped stays in process {one.pid}: {left}")

    def _wait_for_hello(self, one: One) -> None:
        limit = time.monotonic() + HELLO
        while not one.hello.wait(0.1):
            if one.refused:
                raise AttachError(f"process {one.pid} cannot be debugged: {one.refused}", "it runs on as before")
            if self.cancelled.is_set():
                raise Cancelled(f"the attach was given up: process {one.pid} runs on as before")
            if not lives(one.pid):
                raise AttachError(f"process {one.pid} ended while adbg was getting in", "there is nothing to attach to")
            if time.monotonic() > limit:
                raise AttachError(
                    f"adbg got into process {one.pid}, but its agent said nothing for {HELLO:.0f} s; it runs on",
                    "try again when the process is less busy; its stderr may say more",
                )

    def stop(self, wait: bool = False) -> None:
        """Enter nothing any more. ``wait``: until nothing is under way, ``GIVE_UP`` seconds at most."""
        self.cancelled.set()
        limit = time.monotonic() + GIVE_UP
        for one in self._all() if wait else ():
            if one.thread is not None and one.thread is not threading.current_thread():
                one.thread.join(max(0.0, limit - time.monotonic()))


def listening_process(pid: int, config: SessionConfig) -> ProcessInfo:
    """What is known of a process that was connected to before it said who it is."""
    return ProcessInfo(pid, None, [], "", "", config.run_dir)
