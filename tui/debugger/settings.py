"""The user's settings, the same in every process: breakpoints, the stop on errors, VLOG levels, debugging aids.

Methods that change a setting wait for every agent's answer. A process that joins later gets all of them (``send``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from adbg.engine.errors import AdbgError, CommandError, DebuggeeGone
from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger import events
from adbg.tui.debugger.breakpoint_list import Breakpoint, BreakpointList
from adbg.tui.debugger.model import Model, State
from adbg.tui.debugger.process import Process


class Sent(NamedTuple):
    """What a process that joins was given."""

    version: int  # of the list of breakpoints
    error_stops: bool
    vlog: tuple[protocol.Vlog, ...]
    all_frames: bool = False
    diagnosis: protocol.Diagnose | None = None


class Settings:
    """``list`` is used under the model's lock."""

    def __init__(self, model: Model, stop_at_entry: bool) -> None:
        self._model = model
        self.list = BreakpointList()
        self.removed: set[int] = set()  # numbers that the user deleted: numbers are not given twice
        self.stop_at_entry = stop_at_entry  # where the first backward begins
        self._error_stops = True
        self._vlog: tuple[protocol.Vlog, ...] = ()
        self._all_frames = False
        self._diagnosis: protocol.Diagnose | None = None  # None: off
        self.before_change: Callable[[], None] = lambda: None  # of the breakpoints; with the lock held

    # ------------------------------------------------------------------ breakpoints

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        with self._model.lock:
            return self.list.rows()

    @property
    def can_stop(self) -> bool:
        """Some breakpoint may stop the program. With the lock held."""
        return any(row.enabled and not row.trace for row in self.list.rows())

    def breakpoint(self, number: int) -> Breakpoint:
        with self._model.lock:
            return self.list.get(number)

    def add_breakpoint(self, spec: str, temporary: bool = False, trace: bool = False) -> Breakpoint:
        """Raises CommandError for an invalid spec, which is then not kept. One that matches no node is kept and says
        so."""
        with self._model.lock:
            ended = self._model.run.number if self._model.state is State.EXITED else 0
            row = self.list.add(spec.strip(), temporary, trace, ended)
        try:
            self._mirror()
        except AdbgError:
            self._drop(row.id)
            raise
        row = self.breakpoint(row.id)
        if not row.verified:
            self._drop(row.id)
            raise CommandError(row.message or f"invalid breakpoint spec {spec!r}", "`help break` shows the grammar")
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
        """``ignore`` further hits from now on; "" removes a condition. Raises CommandError: no such number, invalid
        condition."""
        with self._model.lock:
            before = self.list.get(number)
            at = None if ignore is None else (before.hits + ignore + 1 if ignore > 0 else 0)
            self.list.change(number, condition=condition, ignore=at, enabled=enabled, commands=commands)
        self._mirror()
        row = self.breakpoint(number)
        if not row.verified:
            with self._model.lock:
                self.list.put_back(before)
            self._mirror()
            raise CommandError(row.message, "the breakpoint is unchanged")
        return row

    def remove_breakpoint(self, number: int) -> None:
        with self._model.lock:
            self.list.remove(number)
            self.removed.add(number)
        self._mirror()

    def _drop(self, number: int) -> None:
        with contextlib.suppress(AdbgError):
            with self._model.lock:
                self.list.withdraw(number)
            self._mirror()

    def _mirror(self) -> None:
        """Send the list to every process and take in what each reports about it."""
        with self._model.lock:
            self.before_change()
            requests = self.list.requests()
        for process in self._model.processes:
            try:
                body: protocol.Breakpoints = process.client.request(protocol.SetFunctionBreakpoints(requests))
            except DebuggeeGone:
                continue
            with self._model.lock:
                self.list.learn(process.number, body.breakpoints)
        self._model.tell(events.BreakpointsChanged(self.breakpoints))

    # ------------------------------------------------------------------ other settings

    @property
    def error_stops(self) -> bool:
        """Whether an exception inside backward stops (by default it does)."""
        return self._error_stops

    def set_error_stops(self, on: bool) -> None:
        self._error_stops = on
        for process in self._model.processes:
            process.client.request(protocol.SetExceptionBreakpoints(["error"] if on else []))

    def set_vlog(self, levels: str, at: str = "", backward: bool = False) -> protocol.VlogBody:
        """Levels for every process; ``at`` for lines of code only. "" only asks for the present levels."""
        asked = protocol.Vlog(levels, at, backward)
        bodies: list[protocol.VlogBody] = [p.client.request(asked) for p in self._connected()]
        if levels == "off":
            self._vlog = ()
        elif levels:
            kept = self._vlog if at or "=" in levels else tuple(earlier for earlier in self._vlog if earlier.at)
            self._vlog = (*kept, asked)
        return bodies[0]

    @property
    def all_frames(self) -> bool:
        """Whether stacks show the framework's own frames too."""
        return self._all_frames

    def show_frames(self, all: bool) -> None:
        """In every process, also in those that join later."""
        self._all_frames = all
        for process in self._model.processes:
            process.client.request(protocol.Frames(all))
            process.view.forget_frames()
        self._mirror()  # which breakpoints at lines match
        self._model.tell(events.FramesShown(all))

    @property
    def diagnosis(self) -> protocol.Diagnose | None:
        """What is looked for; None while diagnosis is off."""
        return self._diagnosis

    def diagnose(self, asked: protocol.Diagnose | None) -> None:
        """Switch diagnosis on in every process, also in those that join later; None: off."""
        with self._model.lock:
            self._diagnosis = asked
        for process in self._model.processes:
            self._send_diagnosis(process, asked)

    def _send_diagnosis(self, process: Process, asked: protocol.Diagnose | None) -> None:
        try:
            process.client.request(asked if asked is not None else protocol.Diagnose("stop"))
        except DebuggeeGone:
            pass  # its reader reports that
        except AdbgError as error:
            self._model.notice("error", f"{process.title} is not diagnosed: {error}")

    def aids(self, name: str = "", value: str = "") -> protocol.AidsBody:
        """The frameworks' own debugging aids; with ``name``, one of them is switched in every process."""
        bodies: list[protocol.AidsBody] = [p.client.request(protocol.Aids(name, value)) for p in self._connected()]
        return bodies[0]

    def _connected(self) -> Sequence[Process]:
        """Raises NotStopped when there is none."""
        processes = self._model.processes
        if not processes:
            raise self._model.absent()
        return processes

    # ------------------------------------------------------------------ a process that joins

    def present(self) -> Sent:
        """With the lock held."""
        return Sent(self.list.version, self._error_stops, self._vlog, self._all_frames, self._diagnosis)

    def send(self, process: Process, wanted: Sent, earlier: Sent | None) -> protocol.Breakpoints:
        """Give ``process`` the settings, or what has changed since it was given ``earlier``. A program without such a
        log is debugged all the same."""
        with self._model.lock:
            requests = self.list.requests()
        states: protocol.Breakpoints = process.client.request(protocol.SetFunctionBreakpoints(requests))
        if not wanted.error_stops or (earlier is not None and not earlier.error_stops):
            process.client.request(protocol.SetExceptionBreakpoints(["error"] if wanted.error_stops else []))
        if wanted.all_frames or (earlier is not None and earlier.all_frames):
            process.client.request(protocol.Frames(wanted.all_frames))
        before = earlier.diagnosis if earlier is not None else None
        if wanted.diagnosis != before:
            self._send_diagnosis(process, wanted.diagnosis)
        for asked in _levels(wanted.vlog, earlier.vlog if earlier is not None else ()):
            try:
                process.client.request(asked)
            except DebuggeeGone:
                raise
            except AdbgError as error:
                self._model.notice("warning", f"{process.title}: {error}")
        return states


def _levels(wanted: tuple[protocol.Vlog, ...], given: tuple[protocol.Vlog, ...]) -> tuple[protocol.Vlog, ...]:
    """What makes the levels ``given`` the ``wanted`` ones: the rest of them, or "off" and all, where one is gone."""
    if wanted[: len(given)] == given:
        return wanted[len(given) :]
    return (protocol.Vlog("off"), *wanted)
