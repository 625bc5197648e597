"""A ``Debugger`` over a scripted program, with its events kept in order."""

from __future__ import annotations

import threading
import time
from typing import Any, TypeVar

from adbg.tui.commands.table import CommandResult, execute
from adbg.tui.debugger.debugger import Debugger, State
from support.patience import patience
from support.scripted_agent import ScriptedAgent, ScriptedProgram

E = TypeVar("E")


class Watched:
    """``events`` grows on the dispatcher thread; ``wait`` and ``settle`` wait for it with a deadline."""

    def __init__(self, program: ScriptedProgram, startup: tuple[str, ...] = (), entry: bool = False) -> None:
        self.program = program
        self.debugger = Debugger(program, startup, "train.py", entry)
        self.events: list[Any] = []
        self.came = threading.Condition()
        self.debugger.model.subscribe(self._take)

    def _take(self, event: Any) -> None:
        with self.came:
            self.events.append(event)
            self.came.notify_all()

    def wait(self, kind: type[E], count: int = 1, seconds: float = 5) -> E:
        """The ``count``-th event of a kind."""
        limit = time.monotonic() + seconds
        with self.came:
            while True:
                found = [event for event in self.events if isinstance(event, kind)]
                if len(found) >= count:
                    return found[count - 1]
                left = limit - time.monotonic()
                assert left > 0, f"no {kind.__name__} number {count} in {[type(e).__name__ for e in self.events]}"
                self.came.wait(left)

    def of(self, kind: type[E]) -> list[E]:
        with self.came:
            return [event for event in self.events if isinstance(event, kind)]

    def start(self) -> ScriptedAgent:
        """Started, every agent connected, the script not let go."""
        self.debugger.start()
        limit = time.monotonic() + patience(5)
        while len(self.debugger.processes) < self.program.ranks:
            assert time.monotonic() < limit, "the agents did not connect"
            time.sleep(0.005)
        return self.program.agents[0]

    def stop_at(self, spec: str) -> ScriptedAgent:
        """Started, and run to a breakpoint."""
        agent = self.start()
        self.debugger.settings.add_breakpoint(spec)
        self.debugger.begin()
        self.settle()
        return agent

    def settle(self, *states: State) -> State:
        """Until the program stands still."""
        wanted = states or (State.STOPPED, State.EXITED)
        assert self.debugger.model.wait_state(*wanted, timeout=patience(5)), (
            f"state is {self.debugger.state}, not one of {wanted}"
        )
        return self.debugger.state

    def run(self, line: str) -> CommandResult:
        """A command, and the stop or the end after it where it set the program going."""
        result = execute(self.debugger, line)
        if result.running:
            self.settle()
        return result
