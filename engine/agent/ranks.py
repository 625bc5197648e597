"""This process as one rank of a job: what it does, in a few numbers, and how long its process groups wait.

Asked for by the front end, once a second at most; nothing is counted or sent for it. Answers are made on "adbg-reader".
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from adbg.engine.backends.base import Backend
from adbg.engine.errors import Unsupported
from adbg.engine.outside import own, suppress
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running
from adbg.engine.session.session import Session

SETTINGS = 4  # of one group's time-out that are told: a collective that waits is younger than the last ones


def environment_rank() -> int | None:
    """As torchrun, paddle.distributed.launch and mpirun tell it. Spawned ranks learn it from what spawned them, and
    show it once they have joined a process group (``Backend.rank``)."""
    for name in ("RANK", "PADDLE_TRAINER_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


class RankFacts(Observer):
    """Knows the backward call that runs, where calls are reported. ``last_collective`` is set by what follows those."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._running: Running | None = None
        self.groups = HeldGroups(session)
        self.last_collective: Callable[[], p.CollectiveAt | None] = lambda: None

    def backward_begin(self, running: Running) -> None:
        self._running = running

    def release(self, running: Running, error: BaseException | None) -> None:
        """It is over: its graph must not be kept alive from here."""
        around = running.chain[:-1]
        self._running = around[-1] if around else None

    def detach(self) -> None:
        self._running = None
        self.groups.put_back()

    def abandon(self) -> None:
        self._running = None
        self.groups = HeldGroups(self._session)

    def state(self) -> p.RankState:
        backends = self._session.backends
        state = p.RankState(
            sum(backend.backward_count for backend in backends),
            sum(backend.iteration for backend in backends),
            stopped=self._session.parked is not None,
            rss=_resident(),
            timeouts=self.groups.listing(),
        )
        with suppress(Exception):
            state = replace(state, collective=self.last_collective())
        running = self._running
        if running is not None:
            state = replace(state, running=True, index=running.state.position, total=running.call.count())
            with suppress(Exception):  # the node may end meanwhile
                state = replace(state, node=next((running.call.name(key) for key in reversed(running.begun)), ""))
        return state


class HeldGroups:
    """The time-outs of the process groups, and those that were raised: put back when the client says so, or leaves."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wanted = 0.0
        # (framework, group, backend) -> the program's own value, and what adbg has set, each with when: by the clock
        # of this process, so that the front end can tell which a collective began with, however late it hears of it
        self._raised: dict[tuple[str, str, str], tuple[float, deque[tuple[float, float]]]] = {}

    def listing(self) -> list[p.GroupTimeout]:
        found: list[p.GroupTimeout] = []
        for backend in self._session.backends:
            with suppress(Exception):
                found += [self._known(row) for row in backend.group_timeouts()]
        return found

    def _known(self, row: p.GroupTimeout) -> p.GroupTimeout:
        """With the program's own value, unless the program has set another one since."""
        before, settings = self._raised.get(_key(row), (row.seconds, ()))
        if not settings or settings[-1][0] != row.seconds:
            return replace(row, own=row.seconds)
        now = time.monotonic()
        return replace(row, own=before, settings=[p.TimeoutSetting(seconds, now - at) for seconds, at in settings])

    def at_least(self, seconds: float) -> list[p.GroupTimeout]:
        """``seconds``, or what the program has set where that is more."""
        self._wanted = seconds
        for backend in self._session.backends:
            for row in self._rows(backend):
                wanted = max(row.own, seconds)
                if row.adjustable and row.seconds != wanted:
                    self._set(backend, row, wanted)
                    earlier = self._raised[_key(row)][1] if row.settings else ()
                    self._raised[_key(row)] = row.own, deque([*earlier, (wanted, time.monotonic())], SETTINGS)
        return self.listing()

    def look_again(self) -> None:
        """The program may have made groups since then."""
        if self._wanted:
            self.at_least(self._wanted)

    def put_back(self) -> None:
        """What the program has changed itself meanwhile is left alone."""
        self.at_least(0.0)
        self._raised.clear()

    def _rows(self, backend: Backend) -> list[p.GroupTimeout]:
        try:
            return [self._known(row) for row in backend.group_timeouts()]
        except own(Exception) as error:
            self._session.problems.defect("the time-outs of the process groups cannot be read", error)
            return []

    def _set(self, backend: Backend, row: p.GroupTimeout, seconds: float) -> None:
        try:
            backend.set_group_timeout(row.group, row.backend, seconds)
        except Unsupported:
            pass  # said by ``adjustable``
        except own(Exception) as error:
            self._session.problems.defect(f"the time-out of group {row.group} cannot be set", error)


def _key(row: p.GroupTimeout) -> tuple[str, str, str]:
    return row.framework, row.group, row.backend


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except own(OSError, ValueError, IndexError):
        return 0
