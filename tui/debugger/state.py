"""What a ``Debugger`` knows, and how listeners learn of changes. Base of ``Debugger``.

Any thread may read; changes are made under ``lock``. Events are delivered on the daemon thread "adbg-events".
"""

from __future__ import annotations

import contextlib
import enum
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import ExitStatus
from adbg.tui.debugger import events
from adbg.tui.debugger.breakpoint_list import BreakpointList
from adbg.tui.debugger.events import Event
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.program import Program
from adbg.tui.debugger.stop_view import StopView, as_error

Listener = Callable[[Event], None]


class State(str, enum.Enum):
    """Of the program as a whole."""

    NEW = "new"  # nothing was started
    STARTING = "starting"  # the process exists, the script waits for ``begin``
    RUNNING = "running"
    STOPPED = "stopped"  # ``current`` stands at ``stop``
    EXITED = "exited"  # ``exit_code`` is known
    DETACHED = "detached"  # it runs on without the debugger


class SessionState(StopView):
    """See the module."""

    def __init__(self, program: Program, startup: Sequence[str] = (), title: str = "", entry: bool = False) -> None:
        self.program = program
        self.startup = list(startup)
        self.title = title
        self.stop_at_entry = entry  # what ``begin`` does unless told: a person wants to see something first
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # notified with every change of ``state`` or of the processes
        self._state = State.NEW
        self._current: Process | None = None
        self._processes: list[Process] = []
        self._waiting: list[Process] = []  # stopped, not looked at yet, in order of stopping
        self._begun = False
        self._generation = 0  # of the program: events of the one before a restart are dropped
        self._numbers = 0
        self.exit: ExitStatus | None = None
        self.ended_by = ""  # "kill" or "restart": what a person ended the program with
        self._list = BreakpointList()
        self._error_stops = True
        self._vlog: tuple[protocol.Vlog, ...] = ()  # what was asked, for processes that join later
        self.selected = 0  # node selected in a panel: its index, 0 follows the stop
        self.ever_stopped = False
        self.backwards_seen = 0
        self.frameworks_seen: set[str] = set()
        self.largest = 0  # nodes in the largest backward seen
        self.tail = ""  # the last TAIL characters that the program wrote
        self._listeners: list[Listener] = []
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._decoders: dict[str, Any] = {}
        self._pump = threading.Thread(target=self._deliver, name="adbg-events", daemon=True)
        self._pump.start()

    # ------------------------------------------------------------------ state

    @property
    def state(self) -> State:
        return self._state

    @property
    def current(self) -> Process | None:
        """The process that commands act on: the one that stopped last, or was chosen by ``select_process``."""
        return self._current

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that are connected."""
        with self.lock:
            return tuple(p for p in self._processes if p.alive)

    @property
    def joined(self) -> int:
        """How many processes ever connected since ``start``."""
        return self._numbers

    @property
    def waiting(self) -> tuple[Process, ...]:
        """Stopped processes that wait for their turn."""
        with self.lock:
            return tuple(self._waiting)

    @property
    def run_dir(self) -> str:
        """The run directory, "" when nothing is recorded."""
        return self.program.run_dir

    @property
    def begun(self) -> bool:
        """The script was let go."""
        return self._begun

    @property
    def run(self) -> int:
        """Which start of the program this is, counted from 1."""
        return self._generation

    @property
    def exit_code(self) -> int | None:
        """The program's exit status as a shell counts it; None while it runs."""
        return None if self.exit is None else self.exit.status

    @property
    def alive(self) -> bool:
        return self._state in (State.STARTING, State.RUNNING, State.STOPPED)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Events from now on go to ``listener`` too; returns how to stop that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    def notice(self, level: str, text: str) -> None:
        """Tell the person something, through whatever front end there is."""
        self._tell(events.Notice(level, text))

    def wait_state(self, *states: State, timeout: float | None = None) -> bool:
        """Until the state is one of ``states``; false when ``timeout`` seconds passed."""
        with self.changed:
            return self.changed.wait_for(lambda: self._state in states, timeout)

    def wait_ready(self, timeout: float = 30.0) -> bool:
        """Until the program's first agent is connected, or the program ended; false after ``timeout`` seconds."""

        def ready() -> bool:
            return bool(self._processes) or not self.alive

        with self.changed:
            return self.changed.wait_for(ready, timeout)

    def _make_current(self, process: Process) -> None:
        """Under the lock."""
        self._current = process
        self.selected = 0
        if process.stop is not None:
            self._set_state(State.STOPPED)
            self._tell(events.Stopped(process, process.stop))
        else:
            self._set_state(State.RUNNING)

    # ------------------------------------------------------------------ delivery

    def _set_state(self, state: State) -> None:
        """Under the lock."""
        self._state = state
        self.changed.notify_all()

    def _tell(self, event: Event) -> None:
        self._queue.put(event)

    def _deliver(self) -> None:
        while True:
            event = self._queue.get()
            if event is None:
                return
            for listener in list(self._listeners):
                try:
                    listener(event)
                except Exception as error:  # one panel's defect must not silence the others
                    print_defect(as_error(error))


def print_defect(error: AdbgError) -> None:
    """Last resort for an error in a listener, where no front end can be asked."""
    with contextlib.suppress(OSError, ValueError):
        print(f"adbg: {error}", file=sys.__stderr__)
