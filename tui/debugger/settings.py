"""The person's breakpoints and settings, the same in every process. Base of ``Debugger``; waits for the agents'
answers."""

from __future__ import annotations

import contextlib

from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger import events
from adbg.tui.debugger.breakpoint_list import Breakpoint
from adbg.tui.debugger.incoming import Reception


class MirroredBreakpoints(Reception):
    """See the module."""

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        with self.lock:
            return self._list.rows()

    @property
    def error_stops(self) -> bool:
        """Whether an exception inside backward stops (it does unless switched off)."""
        return self._error_stops

    def breakpoint(self, number: int) -> Breakpoint:
        with self.lock:
            return self._list.get(number)

    def add_breakpoint(self, spec: str, temporary: bool = False, trace: bool = False) -> Breakpoint:
        """Raises CommandError for a bad spec (which is then not kept). One that matches nothing is kept and says so."""
        with self.lock:
            row = self._list.add(spec.strip(), temporary, trace)
        try:
            self._mirror()
        except AdbgError:
            self._drop(row.id)
            raise
        row = self.breakpoint(row.id)
        if not row.verified:
            self._drop(row.id)
            raise CommandError(row.message or f"bad breakpoint spec {spec!r}", "`help break` shows the grammar")
        return row

    def change_breakpoint(
        self,
        number: int,
        *,
        condition: str | None = None,
        ignore: int | None = None,
        enabled: bool | None = None,
        commands: tuple[str, ...] | None = None,
    ) -> Breakpoint:
        """``ignore`` further hits from now on; "" removes a condition. Raises CommandError: no such number, bad
        condition."""
        with self.lock:
            before = self._list.get(number)
            at = None if ignore is None else (before.hits + ignore + 1 if ignore > 0 else 0)
            self._list.change(number, condition=condition, ignore=at, enabled=enabled, commands=commands)
        self._mirror()
        row = self.breakpoint(number)
        if not row.verified:
            with self.lock:
                self._list.change(number, condition=before.condition, ignore=before.ignore, enabled=before.enabled)
            self._mirror()
            raise CommandError(row.message, "the breakpoint is unchanged")
        return row

    def remove_breakpoint(self, number: int) -> None:
        with self.lock:
            self._list.remove(number)
        self._mirror()

    def _drop(self, number: int) -> None:
        with contextlib.suppress(AdbgError):
            self.remove_breakpoint(number)

    def set_error_stops(self, on: bool) -> None:
        self._error_stops = on
        for process in self.processes:
            process.client.request(protocol.SetExceptionBreakpoints(["error"] if on else []))

    def _mirror(self) -> None:
        """The list to every process; what they say about it back into the list."""
        with self.lock:
            requests = self._list.requests()
        for process in self.processes:
            try:
                body: protocol.Breakpoints = process.client.request(protocol.SetFunctionBreakpoints(requests))
            except DebuggeeGone:
                continue
            with self.lock:
                self._list.learn(process.number, body.breakpoints)
        self._tell(events.BreakpointsChanged(self.breakpoints))

    def set_vlog(self, levels: str, at: str = "", backward: bool = False) -> protocol.VlogBody:
        """Levels for every process, also for those that join later; ``at`` for lines of code only. "" only asks."""
        asked = protocol.Vlog(levels, at, backward)
        bodies = [p.client.request(asked) for p in self.processes]
        if not bodies:
            raise NotStopped("no process of the program is connected")
        if levels == "off":
            self._vlog = ()
        elif levels:
            kept = self._vlog if at or "=" in levels else tuple(earlier for earlier in self._vlog if earlier.at)
            self._vlog = (*kept, asked)
        body: protocol.VlogBody = bodies[0]
        return body

    def aids(self, name: str = "", value: str = "") -> protocol.AidsBody:
        """The frameworks' own debugging aids; with ``name``, one of them, switched in every process."""
        bodies = [p.client.request(protocol.Aids(name, value)) for p in self.processes]
        if not bodies:
            raise NotStopped("no process of the program is connected")
        body: protocol.AidsBody = bodies[0]
        return body
