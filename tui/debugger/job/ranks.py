"""The processes of a program as the ranks of a job: which one is which rank, and what each was doing a moment ago.

A rank is a process that says one (RANK and its like in its environment, or the framework's process group). A child of a
rank with the same environment is its worker, no rank; a launcher has none. One that the launcher starts again takes the
place of the one that ended.

Thread "adbg-ranks" asks every rank for its state once a second while there are several, or somebody watches. The answer
needs no stop, and costs the rank 0.3 to 0.6 ms of a processor (measured on two busy cores). One that does not answer is
not asked again until it does.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.names import ranks_of, ranks_text
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import RankState
from adbg.tui.debugger import events
from adbg.tui.debugger.model import Model, Run
from adbg.tui.debugger.process import Process

PERIOD = 1.0  # seconds between two questions


class Life(str, enum.Enum):
    """Of a rank."""

    RUNNING = "running"
    STOPPED = "stopped"
    EXITED = "exited"  # it said that it ends
    LOST = "lost"  # it is gone without a word: killed, or ended by os._exit


@dataclass(frozen=True, slots=True)
class Rank:
    """One row. ``state`` is what it told last, None before its first answer."""

    rank: int
    process: Process
    life: Life
    state: RankState | None
    age: float | None  # seconds since something of it changed: it stopped, went on, a node or collective began
    stopping: bool  # it was asked to stop, and did not come to a node yet


class Ranks:
    """The ranks of the present start of the program."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._watchers = 0
        self._thread: threading.Thread | None = None
        self._asked: dict[Process, Future[Any]] = {}
        self.each_round: Callable[[], None] = lambda: None  # with the lock held: ranks may have told their numbers

    # ------------------------------------------------------------------ who is which

    def processes(self) -> dict[int, Process]:
        """By rank, also those that ended."""
        with self._model.lock:
            joined = list(self._model.run.processes)
        found: dict[int, Process] = {}
        pids: dict[int, set[int]] = {}  # of the rank and its workers
        for process in joined:
            rank = process.info.rank
            if rank is None:
                continue
            family = pids.setdefault(rank, set())
            holder = found.get(rank)
            if holder is None or (not holder.alive and process.info.parent not in family):
                found[rank] = process
            family.add(process.info.pid)
        return dict(sorted(found.items()))

    def connected(self) -> dict[int, Process]:
        return {rank: process for rank, process in self.processes().items() if process.alive}

    def of(self, process: Process) -> int | None:
        """The rank that it is; None of a launcher, of a worker, and of a program that is no job."""
        rank = process.info.rank
        return rank if rank is not None and self.processes().get(rank) is process else None

    @property
    def several(self) -> bool:
        return len(self.connected()) > 1

    def chosen(self, text: str) -> dict[int, Process]:
        """ "0,2", "1-3" or "all".

        Raises:
            CommandError: no such rank, or it has ended.
        """
        known = self.processes()
        wanted = tuple(self.connected()) if text == "all" else ranks_of(text)
        if wanted is None:
            raise CommandError(f"expected ranks, got {text!r}", "for example: rank 0,2 or rank 1-3 or rank all")
        have = f"ranks: {ranks_text(self.connected())}" if self.connected() else "no process has told a rank so far"
        for rank in wanted:
            if rank not in known:
                raise CommandError(f"no rank {rank}", have)
            if not known[rank].alive:
                raise CommandError(f"rank {rank} has ended", have)
        if not wanted:
            raise CommandError("this program has no ranks", "a job's processes have RANK or PADDLE_TRAINER_ID set")
        return {rank: known[rank] for rank in wanted}

    def members(self) -> list[Rank]:
        """Every rank, also those that ended, in order."""
        now = time.monotonic()
        return [_row(rank, process, now) for rank, process in self.processes().items()]

    # ------------------------------------------------------------------ what each does

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Ask also where there is one rank only, or none has told its number."""
        self._watchers += 1
        self.wake()
        try:
            yield
        finally:
            self._watchers -= 1

    def wake(self) -> None:
        """A process joined: begin to ask, where there is somebody to ask."""
        with self._model.lock:
            if self._thread is None and self._due():
                self._thread = threading.Thread(
                    target=self._ask, args=(self._model.run,), name="adbg-ranks", daemon=True
                )
                self._thread.start()

    def _due(self) -> bool:
        return self._model.alive and (self._watchers > 0 or self.several)

    def _ask(self, run: Run) -> None:
        while True:
            with self._model.lock:
                if run is not self._model.run or not self._due():
                    self._thread = None
                    return
                self.each_round()
            self.ask_once()
            time.sleep(PERIOD)

    def ask_once(self, timeout: float = PERIOD) -> None:
        """Ask every rank that has answered the question before, and wait for the answers."""
        asked = self._asked
        # An answer that came after the last call had given up on it is of then, not of now
        for process, future in list(asked.items()):
            if future.done():
                self._forget(process, future)
        for process in self.connected().values():
            if process not in asked and process.configured:
                with contextlib.suppress(AdbgError):
                    asked[process] = process.client.send(protocol.State())
        deadline = time.monotonic() + timeout
        for process, future in list(asked.items()):
            try:
                told(process, future.result(max(0.0, deadline - time.monotonic())))
            except FutureTimeout:
                continue  # still busy in one long operation that holds the GIL: it is asked again once it answered
            except AdbgError:
                pass  # gone, or an older agent
            self._forget(process, future)
        self._model.tell(events.RanksChanged())

    def _forget(self, process: Process, future: Future[RankState]) -> None:
        """Unless another thread has asked anew meanwhile."""
        with self._model.lock:
            if self._asked.get(process) is future:
                del self._asked[process]


def told(process: Process, state: RankState) -> None:
    """``process`` has answered."""
    if process.state is None or _progress(process.state) != _progress(state):
        process.changed_at = time.monotonic()
    process.state, process.state_at = state, time.monotonic()


def _progress(state: RankState) -> tuple[Any, ...]:
    """What changes while a rank gets on."""
    at = state.collective
    return state.backward, state.index, state.running, state.stopped, (at.group, at.seq, at.running) if at else None


def _row(rank: int, process: Process, now: float) -> Rank:
    if process.alive:
        life = Life.STOPPED if process.stop is not None else Life.RUNNING
    else:
        life = Life.EXITED if process.said_end else Life.LOST
    age = max(0.0, now - process.changed_at)
    return Rank(rank, process, life, process.state, age, process.pause_wanted and process.stop is None)
