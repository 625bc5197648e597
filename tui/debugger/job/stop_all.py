"""Ranks stop together and go on together: a rank that stands keeps the others waiting in their next collective anyway.

When a rank stops, the others are asked to stop at their next node and are *held*: they stand there, can be asked and
stepped, and are no stops of their own to be shown. A breakpoint that a rank hits on the way is: ranks do the same, so
they are given half a second to come to the one that the first stopped at, which is a better place to compare them.
`continue` shows those first, then lets all go. A rank that waits in a collective comes to no node: the time-outs of
process groups are raised while a rank stands, or could come to a breakpoint, where the framework has a way, and put
back when none can.

Called with the model's lock held, on any thread: nothing here waits for an answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from adbg.engine.errors import DebuggeeGone
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import NodeStop, StopReason
from adbg.tui.debugger.job.ranks import Ranks
from adbg.tui.debugger.model import Model, State
from adbg.tui.debugger.process import Process

HELD_SECONDS = 86_400.0  # how long a collective that begins while a rank stands waits for it: a day
_BY_HAND = (StopReason.PAUSE, StopReason.STEP)  # no news where another rank is being looked at
GRACE = 0.5  # seconds in which the others may come to the breakpoint that one stopped at
SETTLED = 3.0  # seconds in which they are likely to stand, or to wait for the one that does


class StopAll:
    """``on``: `set stop all`, the default. ``timeout``: seconds that groups wait while a rank stands or could come to a
    breakpoint (None: as the program has it); ``always``: and also while none can. ``can_stop``: a breakpoint is set."""

    def __init__(self, model: Model, ranks: Ranks, can_stop: Callable[[], bool]) -> None:
        self._model = model
        self._ranks = ranks
        self._can_stop = can_stop
        self.on = True
        self.timeout: float | None = HELD_SECONDS
        self.always = 0.0
        self.since: float | None = None  # a rank stands since then
        self.leader: Process | None = None  # of several ranks that were stepped: the one to be shown

    def holds(self, process: Process) -> bool:
        """Whether others stop and go on with ``process``."""
        return self.on and self._ranks.several and self._ranks.of(process) is not None

    def _others(self, process: Process) -> list[Process]:
        return [other for other in self._ranks.connected().values() if other is not process]

    # ------------------------------------------------------------------ a rank stops

    def arrived(self, process: Process, stop: NodeStop) -> bool:
        """``process`` stopped. True: that is no stop to be shown, it is held or goes on."""
        model = self._model
        wanted, process.pause_wanted = process.pause_wanted, False
        if stop.reason is StopReason.PAUSE and not wanted and process.let_go:
            self._go(process, protocol.Continue())  # it was let go while this stop was on its way
            return True
        process.let_go = False
        if stop.reason is StopReason.ENTRY and not self._enters(process):
            return True
        if stop.reason not in _BY_HAND or not self.holds(process):
            return False
        leader = self.leader
        led = leader is not None and leader is not process and leader.alive and leader.stop is None
        stands = model.state is State.STOPPED and model.run.current is not process
        return stands or (model.state is State.RUNNING and led)

    def _enters(self, process: Process) -> bool:
        """``process`` stopped where its first backward begins. That is shown of the first one alone; ranks are held
        where that one still stands, whatever else trains goes on."""
        run = self._model.run
        first = run.entered = run.entered or process
        if first is process:
            return True
        if first.stop is None or not self.holds(process):
            self._go(process, protocol.Continue())
        return False

    def hold_others(self, process: Process, stop: NodeStop) -> None:
        """``process`` is shown at its stop."""
        self.leader = None
        if self.since is None:
            self.since = time.monotonic()
        if not self._ranks.several or self._ranks.of(process) is None:
            return
        self.renew_timeouts()
        if self.on and stop.reason in (*_BY_HAND, StopReason.ERROR):
            self._hold_all(process)
        elif self.on:
            late = threading.Timer(GRACE, self._hold_late, (process, stop))
            late.daemon = True
            late.start()

    def _hold_late(self, process: Process, stop: NodeStop) -> None:
        with self._model.changed:
            if process.stop is stop and self.holds(process):
                self._hold_all(process)

    def _hold_all(self, process: Process) -> None:
        for other in self._others(process):
            self.hold(other)

    def wait_all(self, processes: Collection[Process], seconds: float = SETTLED) -> None:
        """Those of ``processes`` that are on their way to a stop get there, unless they wait in a collective."""
        limit = time.monotonic() + seconds
        with self._model.changed:
            while self.on and self.since is not None and any(map(_on_its_way, processes)):
                left = limit - time.monotonic()
                if left <= 0:
                    return
                self._model.changed.wait(min(left, 0.05))

    def hold(self, process: Process) -> None:
        """At its next node."""
        if process.alive and process.stop is None and not process.pause_wanted:
            process.pause_wanted, process.let_go = True, False
            self._send(process, protocol.Pause())

    def joined(self, process: Process) -> None:
        """A rank comes late: it does as the others do."""
        self.renew_timeouts()
        current = self._model.run.current
        stands = self._model.state is State.STOPPED and current is not None and current is not process
        if stands and self.holds(process):
            self.hold(process)

    # ------------------------------------------------------------------ they go on

    def standing(self) -> list[Process]:
        """Ranks that stand and are not the one that is shown, nor wait to be shown."""
        run = self._model.run
        return [p for p in self._ranks.connected().values() if p.stop and p is not run.current and p not in run.waiting]

    def release(self) -> list[Process]:
        """Let every other rank go; returns those that stood."""
        run = self._model.run
        gone = []
        for process in self._ranks.connected().values():
            if process is run.current:
                continue
            if process.stop is not None:
                self._go(process, protocol.Continue())
                gone.append(process)
            elif process.pause_wanted:
                process.pause_wanted, process.let_go = False, True
                self._send(process, protocol.Pause(on=False))
        run.waiting[:] = [process for process in run.waiting if process not in gone]
        return gone

    def went_on(self) -> None:
        """A rank went on; when none stands any more, their groups wait as long as before."""
        if all(process.stop is None for process in self._ranks.connected().values()):
            self.since = None
            self.renew_timeouts()

    def forget(self) -> None:
        """The program is started again."""
        self.since = self.leader = None

    def _go(self, process: Process, arguments: Any) -> None:
        process.resumed()
        self._send(process, arguments)

    def _send(self, process: Process, arguments: Any) -> None:
        with contextlib.suppress(DebuggeeGone):
            process.client.send(arguments)

    # ------------------------------------------------------------------ time-outs

    def renew_timeouts(self) -> None:
        """Have the groups of every rank wait as long as they are to wait now, those too that were made since then."""
        wanted = self._seconds()
        for process in self._ranks.connected().values():
            rows = process.state.timeouts if process.state is not None else ()
            late = wanted and any(row.adjustable and row.seconds != max(row.own, wanted) for row in rows)
            if process.timeout_held != wanted or late:
                process.timeout_held = wanted
                self._send(process, protocol.GroupTimeouts(wanted))

    def _seconds(self) -> float:
        """A collective keeps the time-out that it began with: raised when the stop is there, it would be too late for
        those that others began a moment before."""
        if self.timeout is None or not self._ranks.several:
            return 0.0
        ranks = self._ranks.connected().values()
        soon = self.since is not None or self._can_stop() or any(process.pause_wanted for process in ranks)
        return self.timeout if soon else self.always


def _on_its_way(process: Process) -> bool:
    at = process.state.collective if process.state is not None else None
    return process.alive and process.stop is None and not (at is not None and at.running)
