"""The debugger as commands see it that are meant for one rank, whatever process is the current one."""

from __future__ import annotations

from typing import Any

from adbg.engine.errors import AdbgError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.model import State
from adbg.tui.debugger.process import Process
from adbg.tui.debugger.stop_view import StopView


class OneRank(Debugger):
    """Shares everything with ``debugger``; only ``current`` is another process."""

    def __init__(self, debugger: Debugger, process: Process) -> None:
        self.__dict__.update(debugger.__dict__)
        self._process = process

    @property
    def current(self) -> Process | None:
        return self._process

    @property
    def view(self) -> StopView:
        return self._process.view

    def resume(self, arguments: Any) -> None:
        """This rank alone goes on; the others stand as they did."""
        model, process = self.model, self._process
        with model.changed:
            stop = process.stop
            if stop is None:
                raise NotStopped("this rank is running", "`pause` stops all of them at their next node")
            serial, stack = process.stop_serial, process.view.stack
            process.resumed()
            model.run.waiting[:] = [other for other in model.run.waiting if other is not process]
            shown = model.run.current is process
            if shown:
                model.set_state(State.RUNNING)
            if isinstance(arguments, protocol.Continue):
                self.stop_all.went_on()
        try:
            process.client.request(arguments)
        except AdbgError:
            with model.changed:
                if process.alive and process.stop_serial == serial and process.stop is None:
                    process.stop, process.view.stack = stop, stack
                    if shown:
                        model.set_state(State.STOPPED)
            raise
        model.tell(events.Resumed(process))
