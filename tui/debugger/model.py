"""What is known about the program and its processes. The only place with a lock for it; ``Delivery`` brings the events
to the listeners.

Locks: ``Model.lock`` guards the state, the fields of ``Run``, where each process stands, and the settings. ``changed``
is a condition over the same lock, notified when the state or the list of processes changes. The lock is never held
while waiting for an agent's answer, and no listener runs under it. ``DisplayList`` has a lock of its own that it holds
while an agent evaluates; it may take the model's lock inside, never the other way round. Each ``Client`` has locks
inside that it holds only for one write.

Any thread may read single attributes without the lock: values are replaced, not changed in place.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from adbg.engine.errors import NotStopped
from adbg.engine.types import ExitStatus
from adbg.tui.debugger import events
from adbg.tui.debugger.delivery import Delivery, Listener

if TYPE_CHECKING:
    from adbg.tui.debugger.process import Process
    from adbg.tui.debugger.stop_view import StopView


class State(str, enum.Enum):
    """Of the program as a whole."""

    NEW = "new"  # nothing was started
    STARTING = "starting"  # the process exists, the script waits for ``begin``
    RUNNING = "running"
    STOPPED = "stopped"  # ``current`` stands at ``stop``
    EXITED = "exited"  # ``run.exit_code`` is set
    DETACHED = "detached"  # it runs on without the debugger


@dataclass(eq=False)
class Run:
    """One start of the program: its processes, what was seen of it, and its end. A restart makes a new one, and
    whatever still arrives for the old one is dropped."""

    number: int = 0  # counted from 1; 0 before the first start
    begun: bool = False  # the script was let go
    joined: int = 0  # processes that ever connected
    processes: list[Process] = field(default_factory=list)  # including those that ended
    waiting: list[Process] = field(default_factory=list)  # stopped but not shown yet, in the order of their stops
    current: Process | None = None
    exit: ExitStatus | None = None  # None while it runs
    ended_by: str = ""  # the command that ended the program: "kill" or "restart"
    ever_stopped: bool = False
    entered: Process | None = None  # the first that stopped where its first backward begins
    quiet: bool = False  # a stop was asked for, none came, and that was told
    backwards_seen: int = 0
    iterations: int | None = None  # outermost backward calls of the processes that ended by themselves, once one did
    frameworks_seen: set[str] = field(default_factory=set)
    largest: int = 0  # nodes in the largest backward
    cut: int = 0  # nodes that were walked of a larger graph; 0: all were walked to their ends
    tail: str = ""  # the end of what the program wrote

    @property
    def exit_code(self) -> int | None:
        """The program's exit status as a shell counts it; None while it runs."""
        return None if self.exit is None else self.exit.status


class Model:
    """The state of the debugger. ``Debugger``, ``Incoming`` and ``Settings`` change it; front ends read it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.run = Run()
        self.delivery = Delivery()
        self.restartable = True  # adbg started the program
        self._state = State.NEW

    @property
    def state(self) -> State:
        return self._state

    @property
    def alive(self) -> bool:
        return self._state in (State.STARTING, State.RUNNING, State.STOPPED)

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that are connected."""
        with self.lock:
            return tuple(p for p in self.run.processes if p.alive)

    @property
    def waiting(self) -> tuple[Process, ...]:
        """Stopped processes that are shown after the current one."""
        with self.lock:
            return tuple(self.run.waiting)

    @property
    def view(self) -> StopView:
        """Questions to the current process.

        Raises:
            NotStopped: no process is connected.
        """
        process = self.run.current
        if process is None:
            raise self.absent()
        return process.view

    def absent(self) -> NotStopped:
        """Why no process can be asked, and what to do."""
        again = "`restart` starts it again" if self.restartable else "`quit` leaves; `adbg attach` lists what runs"
        if self._state is State.EXITED:
            return NotStopped("the program has ended", again)
        if self._state is State.DETACHED:
            return NotStopped("the debugger is detached from the program", again)
        if self._state in (State.NEW, State.STARTING) and not self.restartable:
            return NotStopped("adbg is not in the program yet", "a line above says what it waits for")
        if self._state in (State.NEW, State.STARTING):
            return NotStopped("the program has not started yet", "`run` starts it")
        return NotStopped("no process of the program is connected")

    def wait_state(self, *states: State, timeout: float | None = None) -> bool:
        """Wait until the state is one of ``states``; false when ``timeout`` seconds passed first."""
        with self.changed:
            return self.changed.wait_for(lambda: self._state in states, timeout)

    def wait_ready(self, timeout: float = 30.0) -> bool:
        """Wait until the first agent is connected or the program ended; false when ``timeout`` seconds passed first."""
        with self.changed:
            return self.changed.wait_for(lambda: bool(self.run.processes) or not self.alive, timeout)

    def notice(self, level: str, text: str) -> None:
        """Show the user a message in whatever front end there is. ``level``: see ``events.Notice``."""
        self.tell(events.Notice(level, text))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """See ``Delivery.subscribe``."""
        return self.delivery.subscribe(listener)

    def tell(self, event: events.Event) -> None:
        """Queue an event for the listeners."""
        self.delivery.put(event)

    # ------------------------------------------------------------------ changes, with the lock held

    def set_state(self, state: State) -> None:
        self._state = state
        self.changed.notify_all()

    def make_current(self, process: Process, asked: bool = False) -> None:
        """Commands act on ``process`` from now on; front ends show its stop. Said, unless the user ``asked`` for it."""
        before, self.run.current = self.run.current, process
        if not asked and before is not None and before is not process:
            self.notice("info", f"{process.title} is the current process")
        process.view.selected = 0
        if process.stop is not None:
            self.set_state(State.STOPPED)
            self.tell(events.Stopped(process, process.stop))
        else:
            self.set_state(State.RUNNING)

    def show_next(self) -> None:
        """Make the process that has waited longest the current one, if there is one."""
        if self.run.waiting:
            self.make_current(self.run.waiting.pop(0))
